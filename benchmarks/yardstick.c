/* The yardstick of benchmarks/speed.py: what careful C does on the same data, for CP models of three modes.
 *
 * Built by speed.py once a rank (-DRANK=16) and number type (-DREAL=float), so that every loop over a row has a length
 * that the compiler knows. Rows are filled up with zeros to STRIDE numbers, whole vectors of 32 bytes. Two threads.
 *
 * Stochastic gradient descent: observations lie in 2 x 2 x 2 blocks, each cut into tiles whose rows fit a core's cache,
 * shuffled inside; block b and its opposite 7 - b share no row of any mode, so that two threads never write to the same
 * row. Alternating least squares: observations sorted by the mode's row; products of the other two rows are gathered in
 * batches, the lower triangle of their Gram matrix is summed in registers, and a vector's worth of rows is solved at
 * once, one row a lane; the rows are cut into two parts of equal work.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef RANK
#define RANK 16
#endif
#ifndef REAL
#define REAL float
#endif
#define LANES (32 / (int)sizeof(REAL))
#define STRIDE ((RANK + LANES - 1) / LANES * LANES)
#define VECTORS (STRIDE / LANES)
#define BATCH 128
#define AHEAD 8
#define INLINE static inline __attribute__((always_inline))

typedef REAL Vector __attribute__((vector_size(32)));
typedef REAL Loose __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));

typedef struct {
    uint32_t i, j, k;
    float x;
} Observation;

typedef struct {
    const Observation *observations;
    int64_t begin, end;
    REAL *A, *B, *C;
    REAL eta, penalty;
    double loss;
} Part;

INLINE Vector load(const REAL *row, int v) { return *(const Loose *)(row + v * LANES); }
INLINE void store(REAL *row, int v, Vector x) { *(Loose *)(row + v * LANES) = x; }

INLINE REAL sum(Vector x) {
    REAL total[LANES];
    *(Loose *)total = x;
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) total[l] += total[l + half];
    return total[0];
}

static void *descend(void *argument) {
    Part *part = argument;
    REAL *const A = part->A, *const B = part->B, *const C = part->C;
    const REAL eta = 2 * part->eta, keep = 1 - 2 * part->eta * part->penalty;
    double loss = 0;
    for (int64_t w = part->begin; w < part->end; w++) {
        const Observation *one = part->observations + w;
        const Observation *later = one + AHEAD; /* the array ends with AHEAD spare observations */
        for (int line = 0; line < STRIDE * (int)sizeof(REAL); line += 64) {
            __builtin_prefetch((const char *)(A + (size_t)later->i * STRIDE) + line, 1);
            __builtin_prefetch((const char *)(B + (size_t)later->j * STRIDE) + line, 1);
            __builtin_prefetch((const char *)(C + (size_t)later->k * STRIDE) + line, 1);
        }
        REAL *a = A + (size_t)one->i * STRIDE, *b = B + (size_t)one->j * STRIDE, *c = C + (size_t)one->k * STRIDE;
        Vector p[VECTORS], q[VECTORS], s[VECTORS], total = {0};
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++) {
            p[v] = load(a, v), q[v] = load(b, v), s[v] = load(c, v);
            total += p[v] * q[v] * s[v];
        }
        const REAL e = (REAL)one->x - sum(total), step = eta * e;
        loss += (double)e * e;
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++) {
            store(a, v, keep * p[v] + step * (q[v] * s[v]));
            store(b, v, keep * q[v] + step * (p[v] * s[v]));
            store(c, v, keep * s[v] + step * (p[v] * q[v]));
        }
    }
    part->loss = loss;
    return 0;
}

/* Both parts at once, or one after the other. */
static void together(void *(*function)(void *), void *first, void *second, int threads) {
    pthread_t other;
    if (threads == 2) {
        pthread_create(&other, 0, function, second);
        function(first);
        pthread_join(other, 0);
    } else {
        function(first);
        function(second);
    }
}

typedef struct {
    const Observation *observations;
    const int64_t *begins; /* the nine ends of the eight blocks */
    REAL *A, *B, *C;
    REAL eta, penalty;
    int64_t passes;
    int side, threads;
    _Atomic int64_t *gate; /* counts arrivals at the end of each round */
    double loss;
} Passes;

static void *visit(void *argument) {
    Passes *mine = argument;
    int64_t arrivals = 0;
    for (int64_t pass = 0; pass < mine->passes; pass++)
        for (int round = 0; round < 4; round++) {
            const int block = mine->side ? 7 - round : round;
            Part part = {mine->observations, mine->begins[block], mine->begins[block + 1], mine->A, mine->B, mine->C,
                         mine->eta, mine->penalty, 0};
            descend(&part);
            mine->loss += part.loss;
            if (mine->threads == 2) {
                arrivals += 2;
                ++*mine->gate;
                for (int tries = 0; *mine->gate < arrivals; tries++)
                    if (tries > 2000) sched_yield();
            }
        }
    return 0;
}

/* Some passes; returns the sum of squared residuals of all of them. */
double sgd_passes(const Observation *observations, const int64_t *begins, REAL *A, REAL *B, REAL *C, double eta,
                  double penalty, int64_t passes, int threads) {
    _Atomic int64_t gate = 0;
    Passes sides[2];
    double loss = 0;
    for (int side = 0; side < 2; side++)
        sides[side] = (Passes){observations, begins, A, B, C, (REAL)eta, (REAL)penalty, passes, side, threads, &gate, 0};
    if (threads == 2) {
        together(visit, sides, sides + 1, 2);
        return sides[0].loss + sides[1].loss;
    }
    for (int64_t pass = 0; pass < passes; pass++)
        for (int round = 0; round < 4; round++)
            for (int side = 0; side < 2; side++) {
                const int block = side ? 7 - round : round;
                Part part = {observations, begins[block], begins[block + 1], A, B, C, (REAL)eta, (REAL)penalty, 0};
                descend(&part);
                loss += part.loss;
            }
    return loss;
}

typedef struct {
    const uint32_t *others; /* two row numbers an observation, of the two other modes */
    const REAL *values;
    const int64_t *begins; /* where each row's observations begin */
    int64_t first, last;   /* rows of this part */
    REAL *X;
    const REAL *Y, *Z;
    REAL ridge;
} Rows;

/* H[a][b] += sum over the batch of P[w][a] P[w][b], rows a0 ... a0 + rows - 1, vectors v0 ... v0 + vectors - 1 of b. */
INLINE void gram(REAL P[][STRIDE], int count, REAL H[][STRIDE], int a0, int rows, int v0, int vectors) {
    Vector sums[8][3];
#pragma GCC unroll 8
    for (int a = 0; a < rows; a++)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) sums[a][v] = load(H[a0 + a], v0 + v);
    for (int w = 0; w < count; w++) {
        Vector right[3];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) right[v] = load(P[w], v0 + v);
#pragma GCC unroll 8
        for (int a = 0; a < rows; a++)
#pragma GCC unroll 3
            for (int v = 0; v < vectors; v++) sums[a][v] += P[w][a0 + a] * right[v];
    }
#pragma GCC unroll 8
    for (int a = 0; a < rows; a++)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) store(H[a0 + a], v0 + v, sums[a][v]);
}

/* Rows 4 t ... 4 t + 3 of the lower triangle; single vectors are done for eight rows at a time. */
INLINE void gram_rows(REAL P[][STRIDE], int count, REAL H[][STRIDE], int t) {
    const int needed = (4 * t + 3) / LANES + 1;
#pragma GCC unroll 16
    for (int v = 0; v < needed; v += 3) gram(P, count, H, 4 * t, 4, v, needed - v < 3 ? needed - v : 3);
}

/* LANES systems at once: lane l of H[a][b], g[a] belongs to system l. */
static void solve(Vector H[RANK][RANK], Vector g[RANK]) {
    for (int a = 0; a < RANK; a++) {
        for (int b = 0; b <= a; b++) {
            Vector total = H[a][b];
            for (int c = 0; c < b; c++) total -= H[a][c] * H[b][c];
            if (a == b) {
                REAL numbers[LANES];
                *(Loose *)numbers = total;
                for (int l = 0; l < LANES; l++) numbers[l] = 1 / (sizeof(REAL) == 4 ? sqrtf(numbers[l]) : sqrt(numbers[l]));
                H[a][a] = *(Loose *)numbers; /* the inverse of the diagonal */
            } else
                H[a][b] = total * H[b][b];
        }
    }
    for (int a = 0; a < RANK; a++) {
        for (int b = 0; b < a; b++) g[a] -= H[a][b] * g[b];
        g[a] *= H[a][a];
    }
    for (int a = RANK - 1; a >= 0; a--) {
        for (int b = a + 1; b < RANK; b++) g[a] -= H[b][a] * g[b];
        g[a] *= H[a][a];
    }
}

static void *update(void *argument) {
    Rows *part = argument;
    static __thread REAL P[BATCH][STRIDE] __attribute__((aligned(64)));
    static __thread REAL H[STRIDE][STRIDE] __attribute__((aligned(64)));
    static __thread REAL many[RANK][RANK][LANES] __attribute__((aligned(64)));
    static __thread REAL right[RANK][LANES] __attribute__((aligned(64)));
    for (int64_t row = part->first; row < part->last; row++) {
        const int lane = (int)((row - part->first) % LANES);
        Vector g[VECTORS] = {{0}};
        memset(H, 0, sizeof H);
        for (int64_t begin = part->begins[row]; begin < part->begins[row + 1]; begin += BATCH) {
            const int64_t left = part->begins[row + 1] - begin;
            const int count = left < BATCH ? (int)left : BATCH;
            const uint32_t *others = part->others + 2 * begin;
            for (int w = 0; w < count; w++) { /* the list of observations ends with AHEAD spare ones */
                for (int line = 0; line < STRIDE * (int)sizeof(REAL); line += 64) {
                    __builtin_prefetch((const char *)(part->Y + (size_t)others[2 * (w + AHEAD)] * STRIDE) + line);
                    __builtin_prefetch((const char *)(part->Z + (size_t)others[2 * (w + AHEAD) + 1] * STRIDE) + line);
                }
                const REAL *y = part->Y + (size_t)others[2 * w] * STRIDE;
                const REAL *z = part->Z + (size_t)others[2 * w + 1] * STRIDE;
                const REAL x = part->values[begin + w];
#pragma GCC unroll 16
                for (int v = 0; v < VECTORS; v++) {
                    const Vector phi = load(y, v) * load(z, v);
                    store(P[w], v, phi);
                    g[v] += x * phi;
                }
            }
#pragma GCC unroll 32
            for (int t = 0; t < (RANK + 3) / 4; t++) gram_rows(P, count, H, t);
        }
        for (int a = 0; a < RANK; a++) {
            for (int b = 0; b <= a; b++) many[a][b][lane] = H[a][b];
            many[a][a][lane] += part->ridge;
            right[a][lane] = ((REAL *)g)[a];
        }
        if (lane == LANES - 1 || row == part->last - 1) {
            for (int l = lane + 1; l < LANES; l++)
                for (int a = 0; a < RANK; a++) {
                    for (int b = 0; b <= a; b++) many[a][b][l] = a == b;
                    right[a][l] = 0;
                }
            solve((Vector(*)[RANK])many, (Vector *)right);
            for (int l = 0; l <= lane; l++)
                for (int a = 0; a < RANK; a++) part->X[(row - lane + l) * STRIDE + a] = right[a][l];
        }
    }
    return 0;
}

/* All rows of one mode; `middle` cuts them into two parts of equal work. */
void als_mode(const uint32_t *others, const REAL *values, const int64_t *begins, int64_t rows, int64_t middle, REAL *X,
              const REAL *Y, const REAL *Z, double ridge, int threads) {
    Rows parts[2] = {{others, values, begins, 0, middle, X, Y, Z, (REAL)ridge},
                     {others, values, begins, middle, rows, X, Y, Z, (REAL)ridge}};
    together(update, parts, parts + 1, threads);
}
