/* Fused step: one forward pass of a Qwen3 network, bit for bit what numpy_model.py computes in batch-invariant mode.
 *
 * exp, tanh and the product of complex numbers are numpy's own loops, and products are the calls of BLAS that numpy
 * makes: all come as pointers. Instead of the calls, tiles may add up in the order of OpenBLAS's kernels for Haswell and
 * Zen (kernel/x86_64/sgemv_n_microk_haswell-4.c and sgemv_t_microk_haswell-4.c): 8 inputs from zero by fused
 * multiply-adds, and then the sum of these to that of the inputs before; or 8 sums along a row, and then these in pairs.
 * fused_step.py compares the bits before it has tiles used. All else is rounded the same way everywhere, as long as the
 * compiler does not contract a product and a sum (-ffp-contract=off). Arrays are as in numpy_model.py: row-major,
 * float32. Whoever calls checks ids, slots and positions.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef BLAS_INT
#define BLAS_INT int64_t
#endif

enum { ROW_MAJOR = 101, COLUMN_MAJOR = 102, TRANSPOSED = 112 };
enum { STRIP = 16, TILE = 4, CHAIN = 8 };

typedef void (*gemv_t)(int, int, BLAS_INT, BLAS_INT, float, const float *, BLAS_INT, const float *, BLAS_INT, float,
                       float *, BLAS_INT);
typedef float (*dot_t)(BLAS_INT, const float *, BLAS_INT, const float *, BLAS_INT);
typedef void (*loop_t)(char **, const intptr_t *, const intptr_t *, void *);

/* An inner loop of a numpy ufunc. */
struct loop {
    loop_t call;
    void *data;
};

/* Weights (inputs, outputs). `tiles` are those of the outputs from `first` on in strips of 16, (strips, inputs, 16);
 * NULL = none. OpenBLAS's kernel takes a few outputs apart: 4 or 8 or both in front of the strips, and up to 3 behind. */
struct matrix {
    const float *weights, *tiles;
    int64_t inputs, outputs, first, strips;
};

struct layer {
    struct matrix qkv, out, gate_up, down;
    const float *qk_norm;
};

struct network {
    int64_t num_layers, width, num_heads, num_kv_heads, head_dim, mlp_width;
    int64_t cache_width, num_slots, block, is_bounded, attends_in_tiles;
    float width_eps, head_eps;
    struct matrix head;
    const struct layer *layers;
    const float *embedding, *rotations, *ones;
    float *cache;
    gemv_t gemv;
    dot_t dot;
    struct loop exp, tanh, multiply_complex;
};

/* y (m) = x (k) @ w (k, m), whose rows are `stride` apart */
static void times(const struct network *net, const float *x, const float *w, int64_t stride, float *y, int64_t k,
                  int64_t m)
{
    net->gemv(ROW_MAJOR, TRANSPOSED, k, m, 1.0f, w, stride, x, 1, 0.0f, y, 1);
}

/* y (m) = w (m, k) @ x (k) */
static void of_rows(const struct network *net, const float *w, const float *x, float *y, int64_t m, int64_t k)
{
    net->gemv(COLUMN_MAJOR, TRANSPOSED, k, m, 1.0f, w, k, x, 1, 0.0f, y, 1);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* 16 columns of y (rows, outputs) = x (rows, inputs) @ weights, whose rows are `stride` apart. `rows` is constant where
 * this is inlined. */
__attribute__((target("avx2,fma"), always_inline)) static inline void tile(const float *x, const float *strip,
                                                                           int64_t stride, float *y, int64_t inputs,
                                                                           int64_t outputs, int rows)
{
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++)
            _mm256_storeu_ps(y + r * outputs + 8 * half, _mm256_setzero_ps());
    for (int64_t k = 0; k < inputs; k += CHAIN) {
        __m256 sums[TILE][2];
        for (int r = 0; r < rows; r++)
            sums[r][0] = sums[r][1] = _mm256_setzero_ps();
        for (int i = 0; i < CHAIN; i++) {
            const __m256 low = _mm256_loadu_ps(strip + (k + i) * stride);
            const __m256 high = _mm256_loadu_ps(strip + (k + i) * stride + 8);
            for (int r = 0; r < rows; r++) {
                const __m256 input = _mm256_broadcast_ss(x + r * inputs + k + i);
                sums[r][0] = _mm256_fmadd_ps(low, input, sums[r][0]);
                sums[r][1] = _mm256_fmadd_ps(high, input, sums[r][1]);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++) {
                float *at = y + r * outputs + 8 * half;
                _mm256_storeu_ps(at, _mm256_add_ps(sums[r][half], _mm256_loadu_ps(at)));
            }
    }
}

__attribute__((target("avx2,fma"))) static void in_tiles(const struct matrix *w, const float *x, float *y, int64_t num)
{
    for (int64_t s = 0; s < w->strips; s++) {
        const float *strip = w->tiles + s * STRIP * w->inputs;
        float *column = y + w->first + s * STRIP;
        int64_t row = 0;
        for (; row + TILE <= num; row += TILE)
            tile(x + row * w->inputs, strip, STRIP, column + row * w->outputs, w->inputs, w->outputs, TILE);
        for (; row < num; row++)
            tile(x + row * w->inputs, strip, STRIP, column + row * w->outputs, w->inputs, w->outputs, 1);
    }
}

/* y (num) = rows (num, size) @ x (size); `num` is a multiple of 4 and `size` of 16. */
__attribute__((target("avx2,fma"))) void rows_in_tiles(const float *x, const float *rows, float *y, int64_t num,
                                                       int64_t size)
{
    for (int64_t row = 0; row < num; row += TILE) {
        __m256 sums[TILE];
        __m128 halves[TILE];
        for (int r = 0; r < TILE; r++)
            sums[r] = _mm256_setzero_ps();
        for (int64_t i = 0; i < size; i += 8) {
            const __m256 input = _mm256_loadu_ps(x + i);
            for (int r = 0; r < TILE; r++)
                sums[r] = _mm256_fmadd_ps(_mm256_loadu_ps(rows + (row + r) * size + i), input, sums[r]);
        }
        for (int r = 0; r < TILE; r++)
            halves[r] = _mm_add_ps(_mm256_castps256_ps128(sums[r]), _mm256_extractf128_ps(sums[r], 1));
        const __m128 low = _mm_hadd_ps(halves[0], halves[1]), high = _mm_hadd_ps(halves[2], halves[3]);
        /* BLAS adds to zeros, which makes 0 of -0. */
        _mm_storeu_ps(y + row, _mm_add_ps(_mm_hadd_ps(low, high), _mm_setzero_ps()));
    }
}

/* y (width) = x (inputs) @ rows (inputs, width) */
__attribute__((target("avx2,fma"))) void row_in_tiles(const float *x, const float *rows, float *y, int64_t inputs,
                                                      int64_t width)
{
    for (int64_t column = 0; column < width; column += STRIP)
        tile(x, rows + column, width, y + column, inputs, width, 1);
}

int has_tiles(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
static void in_tiles(const struct matrix *w, const float *x, float *y, int64_t num)
{
    (void)w, (void)x, (void)y, (void)num;
}

void rows_in_tiles(const float *x, const float *rows, float *y, int64_t num, int64_t size)
{
    (void)x, (void)rows, (void)y, (void)num, (void)size;
}

void row_in_tiles(const float *x, const float *rows, float *y, int64_t inputs, int64_t width)
{
    (void)x, (void)rows, (void)y, (void)inputs, (void)width;
}

int has_tiles(void)
{
    return 0;
}
#endif

/* x += y */
static void add(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

static float dot(const struct network *net, const float *x, const float *y, int64_t n)
{
    return net->dot(n, x, 1, y, 1);
}

/* y (num, outputs) = x (num, inputs) @ w */
void product(const struct network *net, const struct matrix *w, const float *x, float *y, int64_t num)
{
    const int64_t k = w->inputs, m = w->outputs, rest = w->first + w->strips * STRIP;
    if (w->tiles != NULL)
        in_tiles(w, x, y, num);
    for (int64_t row = 0; row < num; row++) {
        const float *input = x + row * k;
        float *output = y + row * m;
        if (m == 1)
            output[0] = dot(net, input, w->weights, k);
        else if (w->tiles == NULL)
            times(net, input, w->weights, m, output, k, m);
        else {
            if (w->first > 0)
                times(net, input, w->weights, m, output, k, w->first);
            if (rest < m)
                times(net, input, w->weights + rest, m, output + rest, k, m - rest);
        }
    }
}

static void map(const struct loop *loop, const float *x, float *y, int64_t n)
{
    char *arrays[2] = {(char *)x, (char *)y};
    const intptr_t size[1] = {n}, strides[2] = {sizeof(float), sizeof(float)};
    loop->call(arrays, size, strides, loop->data);
}

/* y = x / its length */
static void unit(const struct network *net, const float *x, float *y, int64_t n, float eps)
{
    const float length = sqrtf(dot(net, x, x, n) + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] / length;
}

/* Norm and rotate the heads of queries and keys, in place. */
static void turn(const struct network *net, float *heads, const float *norm, const float *rotation)
{
    const int64_t num = net->num_heads + net->num_kv_heads, size = net->head_dim;
    for (int64_t h = 0; h < num; h++) {
        float *head = heads + h * size;
        unit(net, head, head, size, net->head_eps);
        for (int64_t i = 0; i < size; i++)
            head[i] *= norm[h * size + i];
        char *arrays[3] = {(char *)head, (char *)rotation, (char *)head};
        const intptr_t n[1] = {size / 2}, strides[3] = {8, 8, 8};
        net->multiply_complex.call(arrays, n, strides, net->multiply_complex.data);
    }
}

static int64_t rounded_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* Mix the values of one slot for one query head: positions 0 to `position`. `scores` has room for them, in whole blocks;
 * `part` for a head. Positions ahead count as zeros, which change no bit of a sum. */
static void attend(const struct network *net, const float *query, const float *keys, const float *values,
                   int64_t position, float *scores, float *part, float *mixed)
{
    const int64_t block = net->block, size = net->head_dim, known = position + 1, end = rounded_up(known, block);
    if (net->attends_in_tiles)
        rows_in_tiles(query, keys, scores, rounded_up(known, TILE), size);
    else
        for (int64_t at = 0; at < known; at += block)
            of_rows(net, keys + at * size, query, scores + at, block, size);
    if (!net->is_bounded) {
        float most = scores[0];
        for (int64_t i = 1; i < known; i++)
            most = scores[i] > most ? scores[i] : most;
        for (int64_t i = 0; i < known; i++)
            scores[i] -= most;
    }
    map(&net->exp, scores, scores, known);
    memset(scores + known, 0, sizeof(float) * (end - known));
    float sum = 0.0f;
    for (int64_t at = 0; at < known; at += block) {
        const float *shares = scores + at, *of_block = values + at * size;
        float *to = at == 0 ? mixed : part;
        if (net->attends_in_tiles)
            row_in_tiles(shares, of_block, to, known - at < block ? rounded_up(known - at, CHAIN) : block, size);
        else
            times(net, shares, of_block, size, to, block, size);
        if (at > 0)
            add(mixed, part, size);
        sum = at == 0 ? dot(net, shares, net->ones, block) : sum + dot(net, shares, net->ones, block);
    }
    for (int64_t i = 0; i < size; i++)
        mixed[i] /= sum;
}

/* Compute `num` tokens and write their keys and values into the cache: `logits` (num_last, outputs) of the tokens
 * `last`. Returns 0, or 1 if there is no memory. */
int fused_step(const struct network *net, int64_t num, const int32_t *ids, const int64_t *slots,
               const int64_t *positions, int64_t num_last, const int64_t *last, float *logits)
{
    const int64_t width = net->width, size = net->head_dim, inner = net->mlp_width;
    const int64_t heads = net->num_heads, kv = net->num_kv_heads, per_kv = heads / kv;
    const int64_t all = (heads + 2 * kv) * size, of_head = net->cache_width * size, of_slot = 2 * kv * of_head;
    const int64_t for_token = 3 * width + all + heads * size + 3 * inner;
    float *memory = malloc(sizeof(float) * (num * for_token + size + net->cache_width));
    if (memory == NULL)
        return 1;
    float *x = memory, *units = x + num * width, *added = units + num * width, *qkv = added + num * width;
    float *mixed = qkv + num * all, *both = mixed + num * heads * size, *gated = both + 2 * num * inner;
    float *part = gated + num * inner, *scores = part + size;
    for (int64_t t = 0; t < num; t++)
        memcpy(x + t * width, net->embedding + ids[t] * width, sizeof(float) * width);
    for (int64_t l = 0; l < net->num_layers; l++) {
        const struct layer *layer = net->layers + l;
        float *cache = net->cache + l * net->num_slots * of_slot;
        for (int64_t t = 0; t < num; t++)
            unit(net, x + t * width, units + t * width, width, net->width_eps);
        product(net, &layer->qkv, units, qkv, num);
        for (int64_t t = 0; t < num; t++) {
            float *own = qkv + t * all;
            turn(net, own, layer->qk_norm, net->rotations + positions[t] * size);
            for (int64_t h = 0; h < 2 * kv; h++)
                memcpy(cache + slots[t] * of_slot + h * of_head + positions[t] * size, own + (heads + h) * size,
                       sizeof(float) * size);
        }
        for (int64_t t = 0; t < num; t++) {
            const float *keys = cache + slots[t] * of_slot, *values = keys + kv * of_head;
            for (int64_t h = 0; h < heads; h++)
                attend(net, qkv + t * all + h * size, keys + h / per_kv * of_head, values + h / per_kv * of_head,
                       positions[t], scores, part, mixed + (t * heads + h) * size);
        }
        product(net, &layer->out, mixed, added, num);
        add(x, added, num * width);
        for (int64_t t = 0; t < num; t++)
            unit(net, x + t * width, units + t * width, width, net->width_eps);
        product(net, &layer->gate_up, units, both, num);
        for (int64_t t = 0; t < num; t++) {
            const float *half_gate = both + 2 * t * inner, *up = half_gate + inner;
            float *silu = gated + t * inner;
            map(&net->tanh, half_gate, silu, inner);
            for (int64_t i = 0; i < inner; i++)
                silu[i] = (silu[i] + 1.0f) * half_gate[i] * up[i];
        }
        product(net, &layer->down, gated, added, num);
        add(x, added, num * width);
    }
    for (int64_t r = 0; r < num_last; r++)
        unit(net, x + last[r] * width, units + r * width, width, net->width_eps);
    product(net, &net->head, units, logits, num_last);
    free(memory);
    return 0;
}
