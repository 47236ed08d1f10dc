/* Heat in a plate, by Jacobi's method, on any number of ranks: heat ROWS STEPS PAUSE_MS DIRECTORY

It saves itself when one of its ranks gets SIGUSR1 (and goes on) or SIGUSR2 (and waits, until
SIGCONT without SIGTERM). The ranks agree on the step. Each writes its rows into a file of the set
of that step; when all have, rank 0 writes the file "complete", which names the set: so there is a
whole set at any moment, or none. What a set lacks, or has wrong, ends the program; it never begins
anew beside a file "complete". It does no more steps than the file "hold" has, where there is one. The
answer is a hash of all bits of the plate, the same whatever happened.
*/
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GO_ON = 1, WAIT = 2, HOLD = 4 };
static volatile sig_atomic_t asked, go_on;
static int rank, ranks, rows, width;
static const char *directory;
static double *plate, *next;

static void on_signal(int number) {
    if (number == SIGCONT) {
        go_on = 1;
    } else if (asked < WAIT) {
        asked = number == SIGUSR2 ? WAIT : GO_ON;
        go_on = 0;
    }
}

static void listen_for(int number) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(number, &action, NULL);
}

/* Ends all ranks with a sentence of this one. */
static void fail(const char *what, const char *path) {
    fprintf(stderr, "heat: rank %d: %s %s: %s\n", rank, what, path, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static int all(int mine, MPI_Op how) {
    int found;
    MPI_Allreduce(&mine, &found, 1, MPI_INT, how, MPI_COMM_WORLD);
    return found;
}

static char *path_of(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static char *part_of(int step) {
    char name[64];
    snprintf(name, sizeof name, "set-%d.%d", step, rank);
    return path_of(name);
}

/* Whole and on the disk under its name, or not there: 1 for success. */
static int put(const char *path, const void *data, size_t size) {
    char draft[4200];
    snprintf(draft, sizeof draft, "%s.new", path);
    int file = open(draft, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0)
        return 0;
    int good = write(file, data, size) == (ssize_t)size && fsync(file) == 0;
    return close(file) == 0 && good && rename(draft, path) == 0;
}

/* 1: there is a whole set of this step. The one before goes only then. */
static int save(int step, int before) {
    char line[64];
    size_t size = sizeof(double) * rows * width;
    /* A set that is there already is not written once more: it would be broken meanwhile. */
    if (step != before && !all(put(part_of(step), plate + width, size), MPI_MIN)) {
        unlink(part_of(step));
        return 0;
    }
    int good = 1;
    if (rank == 0) {
        snprintf(line, sizeof line, "%d %d\n", step, ranks);
        good = put(path_of("complete"), line, strlen(line));
    }
    if (!all(good, MPI_MIN))
        return 0;
    if (before >= 0 && before != step)
        unlink(part_of(before));
    return 1;
}

/* The step to go on from; -1 where nothing was saved. */
static int load(void) {
    int found[2] = {-1, ranks};
    if (rank == 0) {
        FILE *file = fopen(path_of("complete"), "r");
        if (file == NULL && errno != ENOENT)
            fail("cannot read", path_of("complete"));
        if (file != NULL && fscanf(file, "%d %d", &found[0], &found[1]) != 2)
            fail("is no set:", path_of("complete"));
    }
    MPI_Bcast(found, 2, MPI_INT, 0, MPI_COMM_WORLD);
    if (found[0] < 0)
        return -1;
    if (found[1] != ranks)
        fail("is a set of another number of ranks:", path_of("complete"));
    size_t size = sizeof(double) * rows * width;
    int file = open(part_of(found[0]), O_RDONLY);
    if (file < 0 || read(file, plate + width, size) != (ssize_t)size)
        fail("cannot read", part_of(found[0]));
    close(file);
    return found[0];
}

static void work(void) {
    int up = rank ? rank - 1 : MPI_PROC_NULL, down = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    MPI_Status status;
    MPI_Sendrecv(plate + width, width, MPI_DOUBLE, up, 0, plate + width * (rows + 1), width,
                 MPI_DOUBLE, down, 0, MPI_COMM_WORLD, &status);
    MPI_Sendrecv(plate + width * rows, width, MPI_DOUBLE, down, 1, plate, width, MPI_DOUBLE, up, 1,
                 MPI_COMM_WORLD, &status);
    for (int y = 1; y <= rows; y++)
        for (int x = 0; x < width; x++) {
            double *at = plate + y * width + x;
            double left = x ? at[-1] : 1.0, right = x < width - 1 ? at[1] : 0.0;
            next[y * width + x] = 0.25 * (left + right + at[-width] + at[width]);
        }
    double *done = next;
    next = plate;
    plate = done;
    /* The edges above and below are cold. */
    if (rank == 0)
        memset(plate, 0, sizeof(double) * width);
    if (rank == ranks - 1)
        memset(plate + width * (rows + 1), 0, sizeof(double) * width);
}

static uint64_t answer(void) {
    uint64_t hash = 14695981039346656037u;
    double *whole = rank ? NULL : malloc(sizeof(double) * width * width);
    MPI_Gather(plate + width, rows * width, MPI_DOUBLE, whole, rows * width, MPI_DOUBLE, 0,
               MPI_COMM_WORLD);
    for (size_t at = 0; !rank && at < sizeof(double) * width * width; at++)
        hash = (hash ^ ((unsigned char *)whole)[at]) * 1099511628211u;
    return hash;
}

static void say_where(int step) {
    char name[MPI_MAX_PROCESSOR_NAME] = "", *names = calloc(ranks, MPI_MAX_PROCESSOR_NAME);
    int length;
    MPI_Get_processor_name(name, &length);
    MPI_Gather(name, sizeof name, MPI_CHAR, names, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("begins at step %d on", step);
        for (int one = 0; one < ranks; one++)
            printf(" %s", names + one * MPI_MAX_PROCESSOR_NAME);
        printf("\n");
        fflush(stdout);
    }
    free(names);
}

/* Until SIGCONT, which means that no move comes; but Slurm sends it before SIGTERM, too. */
static void wait_for_move(void) {
    while (!go_on)
        usleep(100000);
    for (time_t end = time(NULL) + 10; time(NULL) < end;)
        usleep(100000);
}

/* A step that is there twice is work that was done twice. */
static void witness(int step) {
    FILE *file = fopen(path_of("witness"), "a");
    if (file == NULL || fprintf(file, "%d\n", step) < 0 || fclose(file) != 0)
        fail("cannot write", path_of("witness"));
}

static int most(void) {
    int found = INT_MAX;
    FILE *file = fopen(path_of("hold"), "r");
    if (file != NULL && fscanf(file, "%d", &found) != 1)
        found = 0;
    if (file != NULL)
        fclose(file);
    return found;
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "0";
}

/* Wait, by files alone, until all ranks have left MPI_Init and can write. OpenMPI 5.0.7 at times ends with a
   segmentation fault (in mca_pml_ob1_recv_frag_callback_match) where a message comes before that. */
static void meet(void) {
    const char *run = variable("SLURM_RESTART_COUNT"), *step = variable("SLURM_STEP_ID");
    char name[64];
    snprintf(name, sizeof name, "here-%s-%s.%d", run, step, rank);
    while (close(open(path_of(name), O_WRONLY | O_CREAT, 0644)) != 0)
        usleep(50000);
    for (int one = 0; one < ranks; one++) {
        snprintf(name, sizeof name, "here-%s-%s.%d", run, step, one);
        while (access(path_of(name), F_OK) != 0)
            usleep(50000);
    }
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 5 || (width = atoi(words[1])) % ranks != 0 || width <= 0) {
        fprintf(stderr, "usage: heat ROWS STEPS PAUSE_MS DIRECTORY, ROWS for each rank alike\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int steps = atoi(words[2]), pause_ms = atoi(words[3]);
    directory = words[4];
    meet();
    rows = width / ranks;
    plate = calloc((size_t)(rows + 2) * width, sizeof(double));
    next = calloc((size_t)(rows + 2) * width, sizeof(double));
    listen_for(SIGUSR1);
    listen_for(SIGUSR2);
    listen_for(SIGCONT);
    int last = load();
    int first = last < 0 ? 0 : last;
    say_where(first);
    for (int step = first; step < steps;) {
        int holds = rank == 0 && step >= most();
        int wanted = all(asked | (holds ? HOLD : 0), MPI_BOR);
        if (wanted & (GO_ON | WAIT)) {
            asked = 0;
            int saved = save(step, last);
            if (rank == 0)
                printf(saved ? "saved at step %d\n" : "could not save at step %d\n", step);
            fflush(stdout);
            last = saved ? step : last;
            if (saved && wanted & WAIT)
                wait_for_move();
        }
        usleep(1000 * pause_ms);
        if (wanted & HOLD)
            continue;
        if (rank == 0)
            witness(step);
        work();
        step++;
    }
    uint64_t hash = answer();
    if (rank == 0)
        printf("answer %016llx after %d steps\n", (unsigned long long)hash, steps);
    MPI_Finalize();
    return 0;
}
