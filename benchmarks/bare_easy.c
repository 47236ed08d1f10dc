/* The same loop as bare_easy.py in C, with nothing around it: the floor for the compiled simulator's speed. Jobs that
 * run are kept twice: in a heap by their ends, and sorted by their expected ends. */
#include <stdlib.h>
#include <string.h>

typedef long long i64;
typedef __int128 i128;

#define KEY(when, job) (((i128)(when) << 32) | (job))
#define TIME(key) ((i64)((key) >> 32))
#define JOB(key) ((i64)((key) & 0xFFFFFFFF))

static i128 *ends, *expected;
static i64 ends_count, expected_count;

static void push(i128 key)
{
    i64 place = ends_count++;
    for (; place && ends[(place - 1) / 2] > key; place = (place - 1) / 2)
        ends[place] = ends[(place - 1) / 2];
    ends[place] = key;
}

static i128 pop(void)
{
    i128 top = ends[0], last = ends[--ends_count];
    i64 place = 0, child;
    while ((child = 2 * place + 1) < ends_count) {
        if (child + 1 < ends_count && ends[child + 1] < ends[child])
            child++;
        if (ends[child] >= last)
            break;
        ends[place] = ends[child];
        place = child;
    }
    ends[place] = last;
    return top;
}

static i64 place_of(i128 key)
{
    i64 low = 0, high = expected_count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (expected[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void begin(i64 job, i64 now, const i64 *run, const i64 *limit, i64 *starts)
{
    starts[job] = now;
    push(KEY(now + run[job], job));
    i128 key = KEY(now + limit[job], job);
    i64 place = place_of(key);
    memmove(expected + place + 1, expected + place, (size_t)(expected_count++ - place) * sizeof *expected);
    expected[place] = key;
}

/* Fill the starts of all jobs. Returns 0. */
int bare_easy(i64 count, const i64 *submit, const i64 *run, const i64 *limit, const i64 *size, i64 nodes, i64 *starts)
{
    i64 free_nodes = nodes, arrival = 0, waiting = 0, first = 0;
    i64 *queue = malloc((size_t)(2 * count + 1) * sizeof *queue);
    ends = malloc((size_t)(count + 1) * sizeof *ends);
    expected = malloc((size_t)(count + 1) * sizeof *expected);
    ends_count = expected_count = 0;
    while (arrival < count || ends_count) {
        i64 now = ends_count ? TIME(ends[0]) : submit[arrival];
        if (arrival < count && submit[arrival] < now)
            now = submit[arrival];
        while (ends_count && TIME(ends[0]) <= now) {
            i64 job = JOB(pop()), place = place_of(KEY(starts[job] + limit[job], job));
            free_nodes += size[job];
            expected_count--;
            memmove(expected + place, expected + place + 1, (size_t)(expected_count - place) * sizeof *expected);
        }
        while (arrival < count && submit[arrival] == now)
            queue[first + waiting++] = arrival++;
        while (waiting && size[queue[first]] <= free_nodes) {
            free_nodes -= size[queue[first]];
            begin(queue[first++], now, run, limit, starts);
            waiting--;
        }
        if (waiting < 2 || !free_nodes)
            continue;
        i64 missing = size[queue[first]] - free_nodes, shadow = 0, is_found = 0;
        for (i64 index = 0; index < expected_count && !(is_found && TIME(expected[index]) > shadow); index++) {
            missing -= size[JOB(expected[index])];
            if (missing <= 0 && !is_found) {
                shadow = TIME(expected[index]) > now ? TIME(expected[index]) : now;
                is_found = 1;
            }
        }
        i64 extra = -missing, kept = 1;
        for (i64 index = 1; index < waiting; index++) {
            i64 job = queue[first + index], need = size[job];
            if (need > free_nodes || (now + limit[job] > shadow && need > extra)) {
                queue[first + kept++] = job;
                continue;
            }
            if (now + limit[job] > shadow)
                extra -= need;
            free_nodes -= need;
            begin(job, now, run, limit, starts);
        }
        waiting = kept;
    }
    free(queue);
    free(ends);
    free(expected);
    return 0;
}
