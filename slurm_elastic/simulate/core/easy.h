/* First come, first served with EASY backfill on a fixed number of nodes: the rule of queues/easy.py, to which each
 * result must be equal. Its names are used here. */
#ifndef SLURM_ELASTIC_EASY_H
#define SLURM_ELASTIC_EASY_H

#include "vectors.h"

#define FAR NEVER
#define NOT_YET (-FAR)

typedef struct {
    const i64 *submit, *runs, *limit, *sizes;
    i64 count, free, shadow, extra;
    i64 *start;
    Keys ends, expected;
    i64 *held; /* the nodes of each job in `expected` */
    i64 held_room;
    i64 *queue, queue_first, queue_end; /* waiting jobs; a started one stays until it comes first */
    i64 waiting;
    /* Waiting jobs of a size as a list, so that backfill skips all jobs of a size that is too large at once. */
    i64 *first, *last, *next, *previous, *shortest;
    Vector ascending; /* the sizes of waiting jobs */
} Easy;

static void easy_begin(Easy *easy, i64 job, i64 now)
{
    i64 size = easy->sizes[job];
    easy->free -= size;
    easy->start[job] = now;
    heap_push(&easy->ends, ((i128)(now + easy->runs[job]) << 32) | job);
    i128 key = ((i128)(now + easy->limit[job]) << 32) | job;
    i64 place = keys_place(&easy->expected, key), running = easy->expected.count;
    keys_insert(&easy->expected, key);
    if (easy->held_room < easy->expected.room) {
        easy->held_room = easy->expected.room;
        easy->held = resized(easy->held, (size_t)easy->held_room * sizeof(i64));
    }
    memmove(easy->held + place + 1, easy->held + place, (size_t)(running - place) * sizeof(i64));
    easy->held[place] = size;
}

static i64 easy_release(Easy *easy, i64 now)
{
    i128 beyond = (i128)(now + 1) << 32;
    while (easy->ends.count && easy->ends.at[0] < beyond) {
        i64 job = (i64)(heap_pop(&easy->ends) & 0xFFFFFFFF);
        easy->free += easy->sizes[job];
        i128 key = ((i128)(easy->start[job] + easy->limit[job]) << 32) | job;
        i64 place = keys_place(&easy->expected, key), after = easy->expected.count - place - 1;
        memmove(easy->held + place, easy->held + place + 1, (size_t)after * sizeof(i64));
        keys_delete(&easy->expected, key);
    }
    return now;
}

static int easy_may_pass(Easy *easy, i64 job, i64 now)
{
    if (now + easy->limit[job] > easy->shadow) {
        if (easy->sizes[job] > easy->extra)
            return 0;
        easy->extra -= easy->sizes[job];
    }
    return 1;
}

static i64 easy_size_place(const Easy *easy, i64 size)
{
    i64 low = 0, high = easy->ascending.count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (easy->ascending.at[middle] < size)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void easy_wait(Easy *easy, i64 job)
{
    i64 size = easy->sizes[job], limit = easy->limit[job], last = easy->last[size];
    easy->queue[easy->queue_end++] = job;
    easy->waiting++;
    easy->next[job] = -1;
    easy->previous[job] = last;
    easy->last[size] = job;
    if (last >= 0) {
        easy->next[last] = job;
        if (limit < easy->shortest[size])
            easy->shortest[size] = limit;
        return;
    }
    easy->first[size] = job;
    easy->shortest[size] = limit;
    i64 place = easy_size_place(easy, size);
    vector_push(&easy->ascending, size);
    memmove(easy->ascending.at + place + 1, easy->ascending.at + place,
            (size_t)(easy->ascending.count - 1 - place) * sizeof(i64));
    easy->ascending.at[place] = size;
}

static void easy_leave(Easy *easy, i64 job, i64 now)
{
    easy_begin(easy, job, now);
    i64 size = easy->sizes[job], before = easy->previous[job], after = easy->next[job];
    easy->waiting--;
    if (before >= 0)
        easy->next[before] = after;
    else
        easy->first[size] = after;
    if (after >= 0)
        easy->previous[after] = before;
    else
        easy->last[size] = before;
    if (easy->first[size] < 0) {
        i64 place = easy_size_place(easy, size);
        easy->ascending.count--;
        memmove(easy->ascending.at + place, easy->ascending.at + place + 1,
                (size_t)(easy->ascending.count - place) * sizeof(i64));
    }
}

static void easy_reserve(Easy *easy, i64 now)
{
    i64 missing = easy->sizes[easy->queue[easy->queue_first]] - easy->free, index = 0;
    for (;; index++) {
        missing -= easy->held[index];
        if (missing <= 0 || index + 1 == easy->expected.count)
            break;
    }
    i64 shadow = (i64)(easy->expected.at[index] >> 32);
    /* A running job beyond its limit may end at any moment. */
    easy->shadow = shadow = shadow > now ? shadow : now;
    i128 beyond = (i128)(shadow + 1) << 32; /* all nodes that are free at the shadow count */
    for (index++; index < easy->expected.count && easy->expected.at[index] < beyond; index++)
        missing -= easy->held[index];
    easy->extra = -missing;
}

static i64 easy_first_within(Easy *easy, i64 size, i64 room)
{
    i64 least = FAR;
    for (i64 job = easy->first[size]; job >= 0; job = easy->next[job]) {
        if (easy->limit[job] <= room)
            return job;
        if (easy->limit[job] < least)
            least = easy->limit[job];
    }
    easy->shortest[size] = least;
    return FAR;
}

static void easy_backfill(Easy *easy, i64 now)
{
    i64 room = easy->shadow - now, free = easy->free, extra = easy->extra;
    for (;;) {
        i64 candidate = FAR;
        for (i64 index = 0; index < easy->ascending.count; index++) {
            i64 size = easy->ascending.at[index];
            if (size > free)
                break;
            i64 job = easy->first[size];
            if (job >= candidate)
                continue;
            if (size <= extra) {
                candidate = job;
            } else if (easy->shortest[size] <= room) {
                i64 within = easy_first_within(easy, size, room);
                candidate = within < candidate ? within : candidate;
            }
        }
        if (candidate == FAR) {
            easy->extra = extra;
            return;
        }
        free -= easy->sizes[candidate];
        if (easy->limit[candidate] > room)
            extra -= easy->sizes[candidate];
        easy_leave(easy, candidate, now);
    }
}

static void easy_schedule(Easy *easy, i64 now)
{
    while (easy->waiting) {
        i64 job = easy->queue[easy->queue_first];
        if (easy->start[job] == NOT_YET) {
            if (easy->sizes[job] > easy->free)
                break;
            easy_leave(easy, job, now);
        }
        easy->queue_first++;
    }
    if (!easy->waiting) {
        easy->queue_first = easy->queue_end;
        easy->shadow = FAR;
        return;
    }
    easy_reserve(easy, now);
    if (easy->free >= easy->ascending.at[0])
        easy_backfill(easy, now);
}

static void easy_run(Easy *easy)
{
    i64 arrival = 0, count = easy->count;
    while (arrival < count || easy->ends.count) {
        i64 now = arrival < count ? easy->submit[arrival] : FAR;
        int full;
        if (easy->ends.count && (i64)(easy->ends.at[0] >> 32) <= now) {
            now = easy_release(easy, (i64)(easy->ends.at[0] >> 32));
            full = 1;
        } else {
            full = now > easy->shadow;
        }
        while (arrival < count && easy->submit[arrival] == now) {
            if (full || easy->sizes[arrival] > easy->free) {
                easy_wait(easy, arrival);
                full = full || easy->queue_end - easy->queue_first == 1;
            } else if (!easy->waiting || easy_may_pass(easy, arrival, now)) {
                easy_begin(easy, arrival, now);
            } else {
                easy_wait(easy, arrival);
            }
            arrival++;
        }
        if (full && easy->waiting)
            easy_schedule(easy, now);
    }
}

/* easy_starts(submit, run, limit, sizes, nodes, start): fill `start`, a column of the same length. */
static PyObject *easy_starts(PyObject *module, PyObject *args)
{
    PyObject *given[5];
    i64 nodes;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOLO", &given[0], &given[1], &given[2], &given[3], &nodes, &given[4]))
        return NULL;
    Column columns[5] = {{{0}, NULL, 0}};
    int failed = 0;
    for (int index = 0; index < 5 && !failed; index++)
        failed = column_open(&columns[index], given[index], index == 4 ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0;
    for (int index = 1; index < 5 && !failed; index++) {
        if (columns[index].count != columns[0].count) {
            PyErr_SetString(PyExc_ValueError, "the columns have different lengths");
            failed = 1;
        }
    }
    for (i64 job = 0; !failed && job < columns[0].count; job++) {
        if (columns[3].at[job] < 0 || columns[3].at[job] > nodes) {
            PyErr_SetString(PyExc_ValueError, "a job needs more nodes than there are");
            failed = 1;
        }
    }
    if (!failed) {
        i64 count = columns[0].count;
        Easy easy = {.submit = columns[0].at, .runs = columns[1].at, .limit = columns[2].at,
                     .sizes = columns[3].at, .count = count, .free = nodes, .shadow = FAR,
                     .start = columns[4].at};
        for (i64 job = 0; job < count; job++)
            easy.start[job] = NOT_YET;
        easy.queue = filled(count, 0);
        easy.next = filled(count, -1);
        easy.previous = filled(count, -1);
        easy.first = filled(nodes + 1, -1);
        easy.last = filled(nodes + 1, -1);
        easy.shortest = filled(nodes + 1, 0);
        easy_run(&easy);
        void *made[] = {easy.queue, easy.next, easy.previous, easy.first, easy.last, easy.shortest, easy.held,
                        easy.ends.at, easy.expected.at, easy.ascending.at};
        for (size_t index = 0; index < sizeof made / sizeof *made; index++)
            PyMem_Free(made[index]);
    }
    for (int index = 0; index < 5; index++)
        column_close(&columns[index]);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

#endif
