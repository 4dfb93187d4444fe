"""Export files: which places no export may write to, whatever is there: those of a run's own files, and of its data."""

from collections.abc import Callable
from pathlib import Path

from ramify.store.journal import COPY
from ramify.store.layout import JOURNAL, LAYOUT, LAYOUT_COPY, LAYOUT_DRAFT, SHARDS
from ramify.store.store import CONFIGS, LOG

RUN_FILES = frozenset({SHARDS, LAYOUT, LAYOUT_COPY, LAYOUT_DRAFT, COPY, LOG, *CONFIGS})


def own_fault(data: str | None) -> Callable[[Path], str]:
    """Why a path is refused whatever is said: it is a run's, or the data's. Empty = it is neither. `data`: where the
    run's problems are; None = the run has no file of them."""
    source = None if data is None else Path(data)

    def fault(path: Path) -> str:
        place = path.parent.resolve() / path.name
        for folder in place.parents:
            name = place.relative_to(folder).parts[0]
            is_run = (folder / JOURNAL).is_dir() or (folder / LAYOUT).is_file()
            if is_run and (name in RUN_FILES or name.startswith(JOURNAL)):
                return f"belongs to the run {folder}, and no export writes there; choose another --out"
        if source is not None and source.exists():
            is_data = path.exists() and path.samefile(source)
            if is_data or (source.is_dir() and place.is_relative_to(source.resolve())):
                return f"belongs to the data of this run ({data}), and no export writes there; choose another --out"
        return ""

    return fault
