"""Syscalls: numbers of the system calls that a sandbox refuses or checks, on x86_64 and on aarch64.

Runs on both sides of the wall: standard library only, no other import.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

Machine = Literal["x86_64", "aarch64"]
NEWEST: Final = 466
"""Highest number known when the list was written. Numbers from 424 on are the same on both machines. Newer calls get
the answer of a kernel that does not have them."""

_REFUSED: Final = """
ptrace 101 117              process_vm_readv 310 270    process_vm_writev 311 271   process_madvise 440 440
process_mrelease 448 448    kcmp 312 272                pidfd_getfd 438 438
mount 165 40                umount2 166 39              pivot_root 155 41           chroot 161 51
open_tree 428 428           move_mount 429 429          fsopen 430 430              fsconfig 431 431
fsmount 432 432             fspick 433 433              mount_setattr 442 442       statmount 457 457
listmount 458 458           swapon 167 224              swapoff 168 225             unshare 272 97
setns 308 268               seccomp 317 277             lsm_set_self_attr 460 460
io_uring_setup 425 425      io_uring_enter 426 426      io_uring_register 427 427   io_setup 206 0
bpf 321 280                 userfaultfd 323 282         perf_event_open 298 241     fanotify_init 300 262
inotify_init 253 -          inotify_init1 294 26        vmsplice 278 75             sync 162 81
syncfs 306 267              add_key 248 217             request_key 249 218         keyctl 250 219
memfd_create 319 279        memfd_secret 447 447        shmget 29 194               shmat 30 196
shmctl 31 195               shmdt 67 197                semget 64 190               semctl 66 191
semop 65 193                semtimedop 220 192          msgget 68 186               msgsnd 69 189
msgrcv 70 188               msgctl 71 187               mq_open 240 180             mq_unlink 241 181
settimeofday 164 170        clock_settime 227 112       clock_adjtime 305 266       adjtimex 159 171
sethostname 170 161         setdomainname 171 162       reboot 169 142              kexec_load 246 104
kexec_file_load 320 294     init_module 175 105         finit_module 313 273        delete_module 176 106
create_module 174 -         get_kernel_syms 177 -       query_module 178 -          acct 163 89
quotactl 179 60             quotactl_fd 443 443         iopl 172 -                  ioperm 173 -
modify_ldt 154 -            personality 135 92          syslog 103 116              vhangup 153 58
nfsservctl 180 42           lookup_dcookie 212 18       name_to_handle_at 303 264   open_by_handle_at 304 265
uselib 134 -                ustat 136 -                 sysfs 139 -                 _sysctl 156 -
move_pages 279 239          migrate_pages 256 238       mbind 237 235               set_mempolicy 238 237
set_mempolicy_home_node 450 450                         setpgid 109 154
setxattr 188 5              lsetxattr 189 6             fsetxattr 190 7             setxattrat 463 463
removexattr 197 14          lremovexattr 198 15         fremovexattr 199 16
"""
"""Name, number on x86_64, number on aarch64 (`-` = none)."""

_EXAMINED: Final = """
clone 56 220              clone3 435 435            ioctl 16 29              prctl 157 167
socket 41 198             socketpair 53 199         mmap 9 222               fcntl 72 25
timer_create 222 107      prlimit64 302 261         setpriority 141 140      ioprio_set 251 30
sched_setparam 142 118    sched_setscheduler 144 119    sched_setaffinity 203 122    sched_setattr 314 274
kill 62 129               tkill 200 130             tgkill 234 131           rt_sigqueueinfo 129 138
rt_tgsigqueueinfo 297 240 pidfd_send_signal 424 424
"""
"""Calls that honest code needs; some arguments are refused."""


def _table(text: str) -> Mapping[str, tuple[int | None, int | None]]:
    words = text.split()
    rows = zip(words[::3], words[1::3], words[2::3], strict=True)
    return MappingProxyType({name: (_number(x86), _number(arm)) for name, x86, arm in rows})


def _number(word: str) -> int | None:
    return None if word == "-" else int(word)


REFUSED: Final = _table(_REFUSED)
EXAMINED: Final = _table(_EXAMINED)


def numbers(machine: Machine) -> tuple[int, ...]:
    """Numbers of the syscalls that are refused whatever their arguments are."""
    return tuple(number for name in REFUSED if (number := number_of(name, machine)) is not None)


def number_of(name: str, machine: Machine) -> int | None:
    """The number of one listed syscall; None = this machine does not have it."""
    row = EXAMINED[name] if name in EXAMINED else REFUSED[name]
    return row[0] if machine == "x86_64" else row[1]
