/* The yardstick of benchmarks/speed.py: what plain, careful C does on the same data, for three modes.
 *
 * Built by speed.py once a rank (-DRANK=16) and number type (-DREAL=float), so that every loop over a row has a length
 * that the compiler knows. Two threads, one per half of the work.
 *
 * Stochastic gradient descent: observations lie in 2 x 2 x 2 blocks, shuffled inside; block b and its opposite 7 - b
 * share no row of any mode, so that two threads never write to the same row.
 * Alternating least squares: observations sorted by the mode's row; the rows are cut into two parts of equal work.
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef RANK
#define RANK 16
#endif
#ifndef REAL
#define REAL float
#endif
#define BATCH 128
#define AHEAD 8

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

static void *descend(void *argument) {
    Part *part = argument;
    const REAL eta = 2 * part->eta, shrink = 1 - 2 * part->eta * part->penalty;
    double loss = 0;
    for (int64_t w = part->begin; w < part->end; w++) {
        const Observation *one = part->observations + w;
        const Observation *later = one + AHEAD; /* the arrays end with AHEAD spare observations */
        for (int line = 0; line < RANK * (int)sizeof(REAL); line += 64) {
            __builtin_prefetch((const char *)(part->A + (size_t)later->i * RANK) + line, 1);
            __builtin_prefetch((const char *)(part->B + (size_t)later->j * RANK) + line, 1);
            __builtin_prefetch((const char *)(part->C + (size_t)later->k * RANK) + line, 1);
        }
        REAL *restrict a = part->A + (size_t)one->i * RANK;
        REAL *restrict b = part->B + (size_t)one->j * RANK;
        REAL *restrict c = part->C + (size_t)one->k * RANK;
        REAL guess = 0;
        for (int r = 0; r < RANK; r++) guess += a[r] * b[r] * c[r];
        const REAL e = (REAL)one->x - guess;
        loss += (double)e * e;
        const REAL step = eta * e;
        for (int r = 0; r < RANK; r++) {
            const REAL p = a[r], q = b[r], s = c[r];
            a[r] = shrink * p + step * q * s;
            b[r] = shrink * q + step * p * s;
            c[r] = shrink * s + step * p * q;
        }
    }
    part->loss = loss;
    return 0;
}

/* One pass; `begins` are the nine ends of the eight blocks. */
double sgd_pass(const Observation *observations, const int64_t *begins, REAL *A, REAL *B, REAL *C, double eta,
                double penalty, int threads) {
    double loss = 0;
    for (int round = 0; round < 4; round++) {
        Part parts[2];
        pthread_t other;
        for (int side = 0; side < 2; side++) {
            const int block = side ? 7 - round : round;
            parts[side] = (Part){observations, begins[block], begins[block + 1], A, B, C, (REAL)eta, (REAL)penalty, 0};
        }
        if (threads == 2) {
            pthread_create(&other, 0, descend, parts + 1);
            descend(parts);
            pthread_join(other, 0);
        } else {
            descend(parts);
            descend(parts + 1);
        }
        loss += parts[0].loss + parts[1].loss;
    }
    return loss;
}

typedef struct {
    const uint32_t *others; /* two row numbers an observation, of the two other modes */
    const float *values;
    const int64_t *begins; /* where each row's observations begin */
    int64_t first, last;   /* rows of this part */
    REAL *X;
    const REAL *Y, *Z;
    REAL ridge;
} Rows;

static void *solve(void *argument) {
    Rows *part = argument;
    REAL H[RANK][RANK], g[RANK], P[BATCH][RANK];
    for (int64_t row = part->first; row < part->last; row++) {
        for (int a = 0; a < RANK; a++) {
            g[a] = 0;
            for (int b = 0; b < RANK; b++) H[a][b] = 0;
        }
        for (int64_t begin = part->begins[row]; begin < part->begins[row + 1]; begin += BATCH) {
            const int64_t left = part->begins[row + 1] - begin;
            const int count = left < BATCH ? (int)left : BATCH;
            for (int w = 0; w < count; w++) {
                const REAL *y = part->Y + (size_t)part->others[2 * (begin + w)] * RANK;
                const REAL *z = part->Z + (size_t)part->others[2 * (begin + w) + 1] * RANK;
                const REAL x = (REAL)part->values[begin + w];
                for (int a = 0; a < RANK; a++) {
                    P[w][a] = y[a] * z[a];
                    g[a] += x * P[w][a];
                }
            }
            /* four observations at a time, so that each sum is loaded and stored once for all of them */
            int w = 0;
            for (; w + 4 <= count; w += 4)
                for (int a = 0; a < RANK; a++) {
                    const REAL p = P[w][a], q = P[w + 1][a], s = P[w + 2][a], t = P[w + 3][a];
                    for (int b = 0; b < RANK; b++)
                        H[a][b] += p * P[w][b] + q * P[w + 1][b] + s * P[w + 2][b] + t * P[w + 3][b];
                }
            for (; w < count; w++)
                for (int a = 0; a < RANK; a++)
                    for (int b = 0; b < RANK; b++) H[a][b] += P[w][a] * P[w][b];
        }
        if (part->begins[row] == part->begins[row + 1]) {
            for (int a = 0; a < RANK; a++) part->X[row * RANK + a] = 0;
            continue;
        }
        for (int a = 0; a < RANK; a++) H[a][a] += part->ridge;
        for (int a = 0; a < RANK; a++) { /* Cholesky, column by column of the lower triangle */
            const REAL root = (REAL)sqrt(H[a][a]);
            H[a][a] = root;
            for (int b = a + 1; b < RANK; b++) H[b][a] /= root;
            for (int b = a + 1; b < RANK; b++)
                for (int c = a + 1; c <= b; c++) H[b][c] -= H[b][a] * H[c][a];
        }
        for (int a = 0; a < RANK; a++) {
            for (int b = 0; b < a; b++) g[a] -= H[a][b] * g[b];
            g[a] /= H[a][a];
        }
        for (int a = RANK - 1; a >= 0; a--) {
            for (int b = a + 1; b < RANK; b++) g[a] -= H[b][a] * g[b];
            g[a] /= H[a][a];
        }
        for (int a = 0; a < RANK; a++) part->X[row * RANK + a] = g[a];
    }
    return 0;
}

/* All rows of one mode; `middle` cuts them into two parts of equal work. */
void als_mode(const uint32_t *others, const float *values, const int64_t *begins, int64_t rows, int64_t middle, REAL *X,
              const REAL *Y, const REAL *Z, double ridge, int threads) {
    Rows parts[2] = {{others, values, begins, 0, middle, X, Y, Z, (REAL)ridge},
                     {others, values, begins, middle, rows, X, Y, Z, (REAL)ridge}};
    pthread_t other;
    if (threads == 2) {
        pthread_create(&other, 0, solve, parts + 1);
        solve(parts);
        pthread_join(other, 0);
    } else {
        solve(parts);
        solve(parts + 1);
    }
}
