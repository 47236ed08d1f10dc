/* Passes a number around a ring of ranks, in messages larger than a socket's buffer. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES (1 << 20)

int main(int argc, char **argv)
{
    int rank, size, sum = 0;
    char host[256] = "";
    char *out = malloc(BYTES), *in = malloc(BYTES);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    gethostname(host, sizeof host - 1);
    memset(out, 'a' + rank, BYTES);
    MPI_Sendrecv(out, BYTES, MPI_CHAR, (rank + 1) % size, 0, in, BYTES, MPI_CHAR,
                 (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d on %s heard %c sum %d\n", rank, size, host, in[BYTES - 1], sum);
    MPI_Finalize();
    return 0;
}
