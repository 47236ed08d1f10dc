/* The machines of a pool: batches, idle machines, leases, and machines that jobs share. The rules are those of
 * machines.py, queues/idle_set.py and shared_machines.py, whose names are used here. */
#ifndef SLURM_ELASTIC_POOL_H
#define SLURM_ELASTIC_POOL_H

#include "vectors.h"
#include <structmember.h>

enum { MAX_MARGIN, MIN_MARGIN, MAX_IDLE, MIN_IDLE };

typedef struct {
    i64 phase, since, batch, count;
} Entry;

typedef struct {
    Entry *at;
    i64 count, room;
} Entries;

typedef struct {
    i64 batch, count;
} Piece;

typedef struct {
    Piece *at;
    i64 count, room;
} Pieces;

typedef struct {
    i64 cores, memory, gpus;
} Share;

/* A shared machine in use. `ends`: the expected ends of its jobs, sorted. */
typedef struct {
    Piece piece;
    Share left;
    i64 ready, idle, user, used;
    Keys ends;
} Host;

typedef struct {
    i64 batch, since, next;
} Due;

/* A decision of Purchases for `left` more machines of an offer. Python fills it. */
typedef struct {
    PyObject_HEAD
    i64 offer, left, until, stock;
} Decision;

typedef struct {
    PyObject_HEAD
    i64 idle, busy, booting, held, draining, promised;
    i64 launched, released, launches, releases, reclaimed;
    i64 busy_area, up_area, spot_area, spot_live, overlap;
    i64 machines, standing, max_machines, lease, grid, after;
    i64 order, sinces, flagged, pays_boots, yields, has_turns, is_public;
    i64 max_booting; /* -1: any number */
    i64 spots; /* how many offers are on the spot market */
    i64 number;
    Column live_of, on_spot, needs;
    Column falls, same_from, same_to, watched; /* by offer, see MachineFacts.watch; `watched`: it is alone in its stock */
    Vector batch_start, batch_ready, batch_live, batch_offer, batch_due, booked;
    Keys coming; /* by batch, its expectation; 0: none */
    Vector lease_batch, lease_end, lease_count, lease_reclaimed;
    Entries free;
    Keys expected;
    i64 tracks;
    Map due; /* from a second to the first entry of `dues`, whose last entry `due_last` has */
    Map due_last;
    Due *dues;
    i64 dues_count, dues_room, dues_unused;
    Vector postponed; /* batch, since, batch, since... */
    Map boots;
    /* Sharing: without it `sharing` is 0. */
    i64 sharing, by_user;
    Share whole;
    Host **hosts;
    i64 hosts_count, hosts_room;
    i64 *with_left; /* by free cores, how many shared machines have them */
    Decision *decision;
} Pool;

static int within(Share share, Share other)
{
    return share.cores <= other.cores && share.memory <= other.memory && share.gpus <= other.gpus;
}

static Share plus(Share share, Share other)
{
    return (Share){share.cores + other.cores, share.memory + other.memory, share.gpus + other.gpus};
}

static Share minus(Share share, Share other)
{
    return (Share){share.cores - other.cores, share.memory - other.memory, share.gpus - other.gpus};
}

/* --- idle machines ------------------------------------------------------------------------------------------ */

static int entry_before(const Entry *entry, i64 phase, i64 since, i64 batch)
{
    if (entry->phase != phase)
        return entry->phase < phase;
    if (entry->since != since)
        return entry->since < since;
    return entry->batch < batch;
}

static i64 entries_place(const Entries *entries, i64 phase, i64 since, i64 batch)
{
    i64 low = 0, high = entries->count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (entry_before(&entries->at[middle], phase, since, batch))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void entries_insert(Entries *entries, i64 place, Entry entry)
{
    if (entries->count == entries->room) {
        entries->room = entries->room ? 2 * entries->room : 16;
        entries->at = resized(entries->at, (size_t)entries->room * sizeof(Entry));
    }
    memmove(entries->at + place + 1, entries->at + place, (size_t)(entries->count - place) * sizeof(Entry));
    entries->at[place] = entry;
    entries->count++;
}

static void entries_delete(Entries *entries, i64 place)
{
    entries->count--;
    memmove(entries->at + place, entries->at + place + 1, (size_t)(entries->count - place) * sizeof(Entry));
}

static int by_margin(const Pool *pool)
{
    return pool->order == MAX_MARGIN || pool->order == MIN_MARGIN;
}

/* The index of an entry, or where it belongs. By idle time, entries are in the order of `since`. */
static i64 idle_place(const Pool *pool, i64 batch, i64 since, int *is_there)
{
    const Entries *free = &pool->free;
    i64 place;
    if (by_margin(pool)) {
        place = entries_place(free, modulo(pool->batch_start.at[batch], pool->lease), since, batch);
        *is_there = place < free->count && free->at[place].batch == batch && free->at[place].since == since;
        return place;
    }
    for (place = free->count - 1; place >= 0 && free->at[place].since >= since; place--) {
        if (free->at[place].since == since && free->at[place].batch == batch) {
            *is_there = 1;
            return place;
        }
    }
    *is_there = 0;
    return free->count;
}

static void idle_put(Pool *pool, i64 batch, i64 count, i64 since)
{
    int is_there;
    i64 place = idle_place(pool, batch, since, &is_there);
    if (is_there) {
        pool->free.at[place].count += count;
        return;
    }
    i64 phase = by_margin(pool) ? modulo(pool->batch_start.at[batch], pool->lease) : 0;
    entries_insert(&pool->free, place, (Entry){phase, since, batch, count});
}

static i64 idle_remove(Pool *pool, i64 batch, i64 since, i64 limit)
{
    int is_there;
    i64 place = idle_place(pool, batch, since, &is_there);
    if (!is_there)
        return 0;
    i64 count = pool->free.at[place].count;
    if (count > limit) {
        pool->free.at[place].count = count - limit;
        return limit;
    }
    entries_delete(&pool->free, place);
    return count;
}

static void pieces_push(Pieces *pieces, i64 batch, i64 count)
{
    if (pieces->count == pieces->room) {
        pieces->room = pieces->room ? 2 * pieces->room : 4;
        pieces->at = resized(pieces->at, (size_t)pieces->room * sizeof(Piece));
    }
    pieces->at[pieces->count++] = (Piece){batch, count};
}

static void idle_take(Pool *pool, i64 count, i64 now, Pieces *pieces)
{
    Entries *free = &pool->free;
    i64 index = 0;
    if (by_margin(pool))
        index = entries_place(free, modulo(now, pool->lease) + 1, -NEVER, -1);
    while (count && free->count) {
        i64 place;
        if (pool->order == MAX_MARGIN) {
            index = index > 0 ? index - 1 : -1;
            place = index < 0 ? free->count - 1 : index;
        } else if (pool->order == MIN_MARGIN) {
            index = index >= free->count ? 0 : index;
            place = index;
        } else {
            place = pool->order == MAX_IDLE ? 0 : free->count - 1;
        }
        Entry *entry = &free->at[place];
        if (entry->count > count) {
            entry->count -= count;
            pieces_push(pieces, entry->batch, count);
            return;
        }
        count -= entry->count;
        pieces_push(pieces, entry->batch, entry->count);
        entries_delete(free, place);
    }
}

static void pool_take(Pool *pool, i64 count, i64 now, Pieces *pieces)
{
    pool->idle -= count;
    pool->busy += count;
    pool->busy_area -= count * now;
    idle_take(pool, count, now, pieces);
}

/* --- batches and leases ------------------------------------------------------------------------------------- */

static i64 pool_batch(Pool *pool, i64 start, i64 count, i64 offer, i64 ready)
{
    vector_push(&pool->batch_start, start);
    vector_push(&pool->batch_ready, ready);
    vector_push(&pool->batch_live, count);
    vector_push(&pool->batch_offer, offer);
    vector_push(&pool->batch_due, -1);
    vector_push(&pool->booked, 0);
    keys_reserve(&pool->coming);
    pool->coming.at[pool->coming.count++] = 0;
    pool->launched += count;
    pool->live_of.at[offer] += count;
    i64 area = count * start;
    pool->up_area -= area;
    if (pool->on_spot.at[offer]) {
        pool->spot_live += count;
        pool->spot_area -= area;
    }
    return pool->batch_start.count - 1;
}

static void pool_end(Pool *pool, i64 batch, i64 count, i64 now, int reclaimed)
{
    vector_push(&pool->lease_batch, batch);
    vector_push(&pool->lease_end, now);
    vector_push(&pool->lease_count, count);
    vector_push(&pool->lease_reclaimed, reclaimed);
    i64 offer = pool->batch_offer.at[batch], start = pool->batch_start.at[batch];
    pool->batch_live.at[batch] -= count;
    pool->live_of.at[offer] -= count;
    pool->released += count;
    i64 area = count * (now > start ? now : start);
    pool->up_area += area;
    if (pool->on_spot.at[offer]) {
        pool->spot_live -= count;
        pool->spot_area += area;
    }
}

static i64 pool_room(const Pool *pool)
{
    return pool->max_machines - pool->idle - pool->busy - pool->booting - pool->held;
}

/* --- planned releases --------------------------------------------------------------------------------------- */

/* Add an entry to a second. Returns 1 if it is the second's first. */
static int due_add(Pool *pool, i64 when, i64 batch, i64 since)
{
    i64 row = pool->dues_unused;
    if (row >= 0) {
        pool->dues_unused = pool->dues[row].next;
    } else {
        row = pool->dues_count++;
        if (row >= pool->dues_room) {
            pool->dues_room = pool->dues_room ? 2 * pool->dues_room : 16;
            pool->dues = resized(pool->dues, (size_t)pool->dues_room * sizeof(Due));
        }
    }
    pool->dues[row] = (Due){batch, since, -1};
    i64 last = map_get(&pool->due_last, when);
    map_put(&pool->due_last, when, row);
    if (last >= 0) {
        pool->dues[last].next = row;
        return 0;
    }
    map_put(&pool->due, when, row);
    return 1;
}

/* Take the entries of a second as a list that `next` links; -1 if there are none. */
static i64 due_pop(Pool *pool, i64 when)
{
    i64 row = map_get(&pool->due, when);
    if (row >= 0) {
        map_delete(&pool->due, when);
        map_delete(&pool->due_last, when);
    }
    return row;
}

static i64 due_next(Pool *pool, i64 row)
{
    i64 next = pool->dues[row].next;
    pool->dues[row].next = pool->dues_unused;
    pool->dues_unused = row;
    return next;
}

/* --- expectations ------------------------------------------------------------------------------------------- */

static inline i128 expectation(i64 when, i64 serial, i64 count)
{
    return ((((i128)when << 32) | serial) << 32) | count;
}

static inline i64 expected_at(i128 key) { return (i64)(key >> 64); }
static inline i64 expected_serial(i128 key) { return (i64)((key >> 32) & 0xFFFFFFFF); }
static inline i64 expected_count(i128 key) { return (i64)(key & 0xFFFFFFFF); }

static void expected_add(Pool *pool, i128 key)
{
    if (pool->tracks)
        keys_insert(&pool->expected, key);
}

static void expected_drop(Pool *pool, i128 key)
{
    if (pool->tracks)
        keys_delete(&pool->expected, key);
}

static i64 expected_shadow(const Pool *pool, i64 need, i64 free, i64 now, i64 *extra)
{
    const Keys *keys = &pool->expected;
    i64 missing = need - free, index = 0;
    i128 key = 0;
    int is_enough = 0;
    while (index < keys->count && !is_enough) {
        key = keys->at[index++];
        missing -= expected_count(key);
        is_enough = missing <= 0;
    }
    *extra = -missing;
    if (!is_enough)
        return NEVER;
    i64 shadow = expected_at(key) > now ? expected_at(key) : now;
    i128 beyond = (i128)(shadow + 1) << 64;
    for (; index < keys->count && keys->at[index] < beyond; index++)
        missing -= expected_count(keys->at[index]);
    *extra = -missing;
    return shadow;
}

static void expect_boot(Pool *pool, i64 batch, i64 count, i64 ready)
{
    i128 key = expectation(ready, batch | 1LL << 31, count);
    pool->coming.at[batch] = key;
    expected_add(pool, key);
}

static i128 coming_pop(Pool *pool, i64 batch)
{
    i128 key = pool->coming.at[batch];
    pool->coming.at[batch] = 0;
    return key;
}

/* --- shared machines ---------------------------------------------------------------------------------------- */

static Host *host_open(Pool *pool, Piece piece, i64 ready, i64 idle, i64 user)
{
    Host *host = resized(NULL, sizeof(Host));
    *host = (Host){piece, pool->whole, ready, idle, user, 0, {NULL, 0, 0}};
    if (pool->hosts_count == pool->hosts_room) {
        pool->hosts_room = pool->hosts_room ? 2 * pool->hosts_room : 16;
        pool->hosts = resized(pool->hosts, (size_t)pool->hosts_room * sizeof(Host *));
    }
    pool->hosts[pool->hosts_count++] = host;
    pool->with_left[host->left.cores]++;
    return host;
}

static void host_left(Pool *pool, Host *host, Share left)
{
    pool->with_left[host->left.cores]--;
    host->left = left;
    pool->with_left[left.cores]++;
}

static void host_close(Pool *pool, Host *host)
{
    i64 place = 0;
    while (pool->hosts[place] != host)
        place++;
    pool->hosts_count--;
    memmove(pool->hosts + place, pool->hosts + place + 1, (size_t)(pool->hosts_count - place) * sizeof(Host *));
    pool->with_left[host->left.cores]--;
}

static void host_free(Host *host)
{
    PyMem_Free(host->ends.at);
    PyMem_Free(host);
}

static inline i128 host_expected(const Host *host) { return host->ends.at[host->ends.count - 1]; }

/* Whether any machine in use has so many free cores. */
static int any_host_has(const Pool *pool, i64 cores)
{
    for (i64 left = cores; left <= pool->whole.cores; left++)
        if (pool->with_left[left])
            return 1;
    return 0;
}

/* --- what Python sees --------------------------------------------------------------------------------------- */

/* A column of a pool, by batch or lease, while the simulation runs. */
typedef struct {
    PyObject_HEAD
    PyObject *pool;
    Vector *vector;
} Seen;

static void seen_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Seen *)self)->pool);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t seen_length(PyObject *self) { return (Py_ssize_t)((Seen *)self)->vector->count; }

static PyObject *seen_item(PyObject *self, Py_ssize_t index)
{
    Vector *vector = ((Seen *)self)->vector;
    if (index < 0 || index >= vector->count) {
        PyErr_SetString(PyExc_IndexError, "no such batch or lease");
        return NULL;
    }
    return PyLong_FromLongLong(vector->at[index]);
}

static PyObject *seen_subscript(PyObject *self, PyObject *key)
{
    Py_ssize_t start, stop, step;
    if (!PyObject_TypeCheck(key, &PySlice_Type)) {
        Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if (index == -1 && PyErr_Occurred())
            return NULL;
        return seen_item(self, index < 0 ? index + seen_length(self) : index);
    }
    if (PySlice_Unpack(key, &start, &stop, &step) < 0)
        return NULL;
    Py_ssize_t count = PySlice_AdjustIndices(seen_length(self), &start, &stop, step);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t place = 0; list && place < count; place++, start += step) {
        PyObject *item = seen_item(self, start);
        if (!item || PyList_SetItem(list, place, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *seen_bytes(PyObject *self, PyObject *unused)
{
    Vector *vector = ((Seen *)self)->vector;
    (void)unused;
    return PyBytes_FromStringAndSize((const char *)vector->at, (Py_ssize_t)(vector->count * (i64)sizeof(i64)));
}

/* Free the memory of a column that was copied. */
static PyObject *seen_drop(PyObject *self, PyObject *unused)
{
    Vector *vector = ((Seen *)self)->vector;
    (void)unused;
    PyMem_Free(vector->at);
    *vector = (Vector){NULL, 0, 0};
    Py_RETURN_NONE;
}

static PyMethodDef seen_methods[] = {
    {"drop", seen_drop, METH_NOARGS, "Free the memory of the column."},
    {"tobytes", seen_bytes, METH_NOARGS, "Return the column's 64-bit numbers as bytes."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot seen_slots[] = {
    {Py_tp_dealloc, seen_dealloc},
    {Py_sq_length, seen_length},
    {Py_sq_item, seen_item},
    {Py_mp_length, seen_length},
    {Py_mp_subscript, seen_subscript},
    {Py_tp_methods, seen_methods},
    {0, NULL},
};

static PyType_Spec seen_spec = {
    "slurm_elastic.simulate.core._core.Seen", sizeof(Seen), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, seen_slots,
};

static PyTypeObject *seen_type;

static PyObject *pool_column(PyObject *self, PyObject *args)
{
    Pool *pool = (Pool *)self;
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    struct {
        const char *name;
        Vector *vector;
    } columns[] = {
        {"batch_start", &pool->batch_start}, {"batch_ready", &pool->batch_ready},
        {"batch_live", &pool->batch_live},   {"batch_offer", &pool->batch_offer},
        {"batch_due", &pool->batch_due},     {"lease_batch", &pool->lease_batch},
        {"lease_end", &pool->lease_end},     {"lease_count", &pool->lease_count},
        {"lease_reclaimed", &pool->lease_reclaimed},
    };
    for (size_t index = 0; index < sizeof columns / sizeof *columns; index++) {
        if (strcmp(columns[index].name, name))
            continue;
        Seen *seen = PyObject_New(Seen, seen_type);
        if (!seen)
            return NULL;
        seen->pool = Py_NewRef(self);
        seen->vector = columns[index].vector;
        return (PyObject *)seen;
    }
    return PyErr_Format(PyExc_KeyError, "%s", name);
}

static PyObject *pool_entries(PyObject *self, PyObject *unused)
{
    Pool *pool = (Pool *)self;
    (void)unused;
    PyObject *list = PyList_New((Py_ssize_t)pool->free.count);
    for (i64 index = 0; list && index < pool->free.count; index++) {
        const Entry *entry = &pool->free.at[index];
        PyObject *row = Py_BuildValue("(LLL)", entry->batch, entry->since, entry->count);
        if (!row || PyList_SetItem(list, (Py_ssize_t)index, row) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *pool_idle_of(PyObject *self, PyObject *args)
{
    Pool *pool = (Pool *)self;
    i64 batch, count = 0;
    if (!PyArg_ParseTuple(args, "L", &batch))
        return NULL;
    for (i64 index = 0; index < pool->free.count; index++)
        count += pool->free.at[index].batch == batch ? pool->free.at[index].count : 0;
    return PyLong_FromLongLong(count);
}

static i64 release_idle(Pool *pool, i64 limit, i64 now)
{
    i64 released = 0, place = 0;
    while (place < pool->free.count && released < limit) {
        Entry entry = pool->free.at[place];
        if (pool->batch_due.at[entry.batch] == NEVER) {
            place++;
            continue;
        }
        i64 count = entry.count < limit - released ? entry.count : limit - released;
        if (count == entry.count)
            entries_delete(&pool->free, place);
        else
            pool->free.at[place++].count -= count;
        pool->idle -= count;
        pool_end(pool, entry.batch, count, now, 0);
        released += count;
    }
    pool->releases += released > 0;
    return released;
}

static PyObject *pool_release_idle(PyObject *self, PyObject *args)
{
    i64 limit, now;
    if (!PyArg_ParseTuple(args, "LL", &limit, &now))
        return NULL;
    return PyLong_FromLongLong(release_idle((Pool *)self, limit, now));
}

/* waste(sales, now): launch machines and end them at once. */
static PyObject *pool_waste(PyObject *self, PyObject *args)
{
    Pool *pool = (Pool *)self;
    PyObject *sales;
    i64 now, offer, count;
    if (!PyArg_ParseTuple(args, "O!L", &PyList_Type, &sales, &now))
        return NULL;
    for (Py_ssize_t index = 0; index < PyList_Size(sales); index++) {
        if (!PyArg_ParseTuple(PyList_GetItem(sales, index), "LL", &offer, &count))
            return NULL;
        pool->launches++;
        pool_end(pool, pool_batch(pool, now, count, offer, -1), count, now, 0);
    }
    Py_RETURN_NONE;
}

static void pool_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Pool *pool = (Pool *)self;
    for (i64 index = 0; index < pool->hosts_count; index++)
        host_free(pool->hosts[index]);
    void *made[] = {
        pool->batch_start.at, pool->batch_ready.at, pool->batch_live.at, pool->batch_offer.at, pool->batch_due.at,
        pool->booked.at, pool->coming.at, pool->lease_batch.at, pool->lease_end.at, pool->lease_count.at,
        pool->lease_reclaimed.at, pool->free.at, pool->expected.at, pool->due.keys, pool->due.values,
        pool->due_last.keys, pool->due_last.values, pool->dues, pool->postponed.at, pool->boots.keys,
        pool->boots.values, pool->hosts, pool->with_left,
    };
    for (size_t index = 0; index < sizeof made / sizeof *made; index++)
        PyMem_Free(made[index]);
    column_close(&pool->live_of);
    column_close(&pool->on_spot);
    column_close(&pool->needs);
    column_close(&pool->falls);
    column_close(&pool->same_from);
    column_close(&pool->same_to);
    column_close(&pool->watched);
    Py_XDECREF((PyObject *)pool->decision);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* watch(falls, same_from, same_to, watched): set the columns about losses of spot machines. */
static PyObject *pool_watch(PyObject *self, PyObject *args)
{
    Pool *pool = (Pool *)self;
    PyObject *falls, *same_from, *same_to, *watched;
    if (!PyArg_ParseTuple(args, "OOOO", &falls, &same_from, &same_to, &watched))
        return NULL;
    if (column_open(&pool->falls, falls, PyBUF_SIMPLE) < 0 || column_open(&pool->same_from, same_from, PyBUF_SIMPLE) < 0 ||
        column_open(&pool->same_to, same_to, PyBUF_SIMPLE) < 0 || column_open(&pool->watched, watched, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Whether the next loss of each spot offer is known: MachineFacts.watch would plan none, and change nothing. */
static int losses_known(const Pool *pool, i64 now)
{
    for (i64 offer = 0; offer < pool->falls.count; offer++) {
        i64 live = pool->live_of.at[offer], fall = pool->falls.at[offer];
        if (!pool->on_spot.at[offer] || !live || fall == now)
            continue;
        if (!pool->watched.at[offer] || now >= fall || live < pool->same_from.at[offer] || live >= pool->same_to.at[offer])
            return 0;
    }
    return 1;
}

/* connect(live_of, on_spot, needs, cores, memory, gpus): set the columns, and what a machine has. */
static PyObject *pool_connect(PyObject *self, PyObject *args)
{
    Pool *pool = (Pool *)self;
    PyObject *live_of, *on_spot, *needs, *decision;
    if (!PyArg_ParseTuple(args, "OOOOLLL", &live_of, &on_spot, &needs, &decision, &pool->whole.cores,
                          &pool->whole.memory, &pool->whole.gpus))
        return NULL;
    if (column_open(&pool->live_of, live_of, PyBUF_WRITABLE) < 0 ||
        column_open(&pool->on_spot, on_spot, PyBUF_SIMPLE) < 0 || column_open(&pool->needs, needs, PyBUF_SIMPLE) < 0)
        return NULL;
    pool->with_left = filled(pool->whole.cores + 1, 0);
    pool->dues_unused = -1;
    pool->decision = (Decision *)Py_NewRef(decision); /* checked by the caller */
    Py_RETURN_NONE;
}

#define FIELD(name) {#name, T_LONGLONG, offsetof(Pool, name), 0, NULL}

static PyMemberDef pool_members[] = {
    FIELD(idle), FIELD(busy), FIELD(booting), FIELD(held), FIELD(draining), FIELD(promised), FIELD(launched),
    FIELD(released), FIELD(launches), FIELD(releases), FIELD(reclaimed), FIELD(busy_area), FIELD(up_area),
    FIELD(spot_area), FIELD(spot_live), FIELD(overlap), FIELD(machines), FIELD(standing), FIELD(max_machines),
    FIELD(lease), FIELD(grid), FIELD(after), FIELD(order), FIELD(sinces), FIELD(flagged), FIELD(pays_boots),
    FIELD(has_turns), FIELD(max_booting), FIELD(is_public), FIELD(sharing), FIELD(by_user), FIELD(number),
    {"must_yield", T_LONGLONG, offsetof(Pool, yields), 0, NULL},
    {"spot_offers", T_LONGLONG, offsetof(Pool, spots), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef pool_methods[] = {
    {"connect", pool_connect, METH_VARARGS, "Set the columns, and what a machine has."},
    {"watch_losses", pool_watch, METH_VARARGS, "Set the columns about losses of spot machines."},
    {"column", pool_column, METH_VARARGS, "Return a column by batch or lease."},
    {"entries", pool_entries, METH_NOARGS, "Return the idle machines as (batch, since, machines)."},
    {"idle_of", pool_idle_of, METH_VARARGS, "Return how many machines of a batch are idle."},
    {"release_idle", pool_release_idle, METH_VARARGS, "Release up to `limit` idle machines."},
    {"waste", pool_waste, METH_VARARGS, "Launch machines and end them at once."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pool_slots[] = {
    {Py_tp_dealloc, pool_dealloc},
    {Py_tp_members, pool_members},
    {Py_tp_methods, pool_methods},
    {0, NULL},
};

static PyType_Spec pool_spec = {
    "slurm_elastic.simulate.core._core.Pool", sizeof(Pool), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, pool_slots,
};

#define DECISION_FIELD(name) {#name, T_LONGLONG, offsetof(Decision, name), 0, NULL}

static PyMemberDef decision_members[] = {
    DECISION_FIELD(offer), DECISION_FIELD(left), DECISION_FIELD(until), DECISION_FIELD(stock),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot decision_slots[] = {
    {Py_tp_members, decision_members},
    {0, NULL},
};

static PyType_Spec decision_spec = {
    "slurm_elastic.simulate.core._core.Decision", sizeof(Decision), 0, Py_TPFLAGS_DEFAULT, decision_slots,
};

#endif
