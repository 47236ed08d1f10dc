/* A ring of ranks: each step's value depends on all values before. Rank 0 writes a line a step. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORDS = 8192 };
static uint64_t out[WORDS], in[WORDS];

int main(int count, char **words) {
    int rank, ranks, steps = atoi(words[1]), pause_ms = atoi(words[2]);
    (void)count;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    FILE *file = rank ? NULL : fopen(words[3], "w");
    for (int n = 0; n < WORDS; n++) out[n] = (uint64_t)rank * 1000003 + n;
    for (int step = 0; step < steps; step++) {
        MPI_Sendrecv(out, WORDS, MPI_UINT64_T, (rank + 1) % ranks, 7, in, WORDS, MPI_UINT64_T,
                     (rank + ranks - 1) % ranks, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        uint64_t sum = 0, all = 0;
        for (int n = 0; n < WORDS; n++) sum += in[n] ^ (uint64_t)n;
        MPI_Allreduce(&sum, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (int n = 0; n < WORDS; n++) out[n] = in[n] * 6364136223846793005u + all + step;
        if (file) {
            fprintf(file, "%d %016llx\n", step, (unsigned long long)all);
            fflush(file);
            if (step % 10 == 0) printf("step %d of %d ranks\n", step, ranks), fflush(stdout);
        }
        usleep(pause_ms * 1000);
    }
    printf("rank %d ends with %016llx\n", rank, (unsigned long long)out[rank]);
    MPI_Finalize();
    return 0;
}
