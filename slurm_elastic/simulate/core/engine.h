/* The loop over all events. The rules are those of engine.py, whose names are used here. */
#ifndef SLURM_ELASTIC_ENGINE_H
#define SLURM_ELASTIC_ENGINE_H

#include "grow.h"
#include <limits.h>

#define PROGRESS_EVERY 1000
#define LOOK_S 30 /* cloud_order.LOOK_S */

static void return_job(Core *core, i64 job, i64 now)
{
    int is_oldest = core->waiting_count && job < waiting_at(core)[0];
    core->full = core->full || is_oldest || now > core->shadow;
    if (core->ordered)
        ASK(core, "order_returned", "LL", job, now);
    arrive(core, job, now);
    core->asked = 1;
}

static void handle_ends(Core *core, i64 now)
{
    i128 beyond = ((i128)now << 51) + ((i64)BOOT << 48);
    while (!core->failed && core->events.at[0] < beyond) {
        i128 event = heap_pop(&core->events);
        i64 payload = PAYLOAD(event);
        if (KIND(event) == ARRIVE)
            return_job(core, payload, now);
        else if (KIND(event) == FALL)
            take_spot_machines(core, payload, now);
        else if (core->run_of[payload] >= 0 && end_run(core, payload, now))
            core->full = core->asked = 1;
    }
}

static void handle_boots(Core *core, i64 now)
{
    i128 first = ((i128)now << 51) + ((i64)ARRIVE << 48), beyond = ((i128)now << 51) + ((i64)CHECK << 48);
    while (!core->failed && core->events.at[0] < beyond && core->events.at[0] >= first) {
        i128 event = heap_pop(&core->events);
        i64 payload = PAYLOAD(event);
        if (KIND(event) == ARRIVE)
            return_job(core, payload, now);
        else
            handle_boot(core, core->pools[payload % POOLS], payload / POOLS, now);
    }
}

/* Ask the growth policy, except where Grower.wanted returns nothing and changes nothing: no pool can grow, or no job
 * waits and the policy then starts no machine. The guard and the orders of the clouds remember when they were asked. */
static void ask_growth(Core *core, i64 now)
{
    int can_grow = 0;
    for (i64 index = 0; index < core->pools_count && !can_grow; index++) {
        const Pool *pool = core->pools[index];
        can_grow = pool->machines > pool->standing && room_now(pool);
    }
    if (!core->unhelped && (!can_grow || (!core->waiting_count && !core->ordered && !core->starts_unasked)))
        return;
    /* Only the guard knows which jobs count while it knows any that no machine helped. */
    if (core->policy && !core->unhelped)
        grow_unasked(core, now);
    else
        ASK(core, "launch", "L", now);
}

static void flag_surplus(Core *core, i64 now)
{
    if (core->policy && !core->unhelped)
        flag_unasked(core, now);
    else
        ASK(core, "flag", "L", now);
}

static void grow(Core *core, i64 now)
{
    if (core->period <= 0) {
        if (core->waiting_count && !core->direct) {
            ask_growth(core, now);
            if (!core->free_of_bounds && ASK(core, "is_stopped", "L", now) > 0)
                look_later(core, now);
        }
    } else if (vector_find(&core->due_looks, core->looks) < 0 && (core->waiting_count || core->watches)) {
        i64 next_look = now + modulo(-now, core->period);
        core->looks = next_look > core->looks ? next_look : core->looks + core->period;
        plan_look(core, core->looks);
    }
    look_again(core, now);
}

static void handle_check(Core *core, Pool *pool, i64 now)
{
    if (pool->yields || !counts_any(core, now)) {
        int may_keep = pool->yields && core->waiting_count && !core->direct;
        i64 kept = may_keep ? ASK(core, "kept", "LL", pool->number, now) : 0;
        if (release_due(core, pool, now, kept) && core->waiting_count) {
            core->stale = 1;
            plan_look(core, now);
        }
        return;
    }
    for (i64 row = due_pop(pool, now); row >= 0;) {
        vector_push(&pool->postponed, pool->dues[row].batch);
        vector_push(&pool->postponed, pool->dues[row].since);
        row = due_next(pool, row);
    }
    core->postponed = 1;
}

static void handle_look(Core *core, i128 event, i64 now)
{
    if (KIND(event) == CHECK) {
        handle_check(core, core->pools[PAYLOAD(event)], now);
        return;
    }
    if (PAYLOAD(event)) {
        ASK(core, "look_at_purchase", "LL", PAYLOAD(event), now);
        return;
    }
    i64 place = vector_find(&core->due_looks, now);
    if (place >= 0)
        core->due_looks.at[place] = core->due_looks.at[--core->due_looks.count];
    i64 held = 0;
    for (i64 pool = 0; pool < core->pools_count; pool++)
        held += core->pools[pool]->held;
    if (held)
        ASK(core, "review", "LL", now, (i64)(core->waiting_count > 0));
    if (core->waiting_count && (core->direct || core->stale)) {
        schedule(core, now);
        look_again(core, now);
    }
    if (!core->direct) {
        ask_growth(core, now);
        if (core->watches)
            flag_surplus(core, now);
    }
    if (core->waiting_count && !core->free_of_bounds)
        look_later(core, now);
}

/* Go from event to event. Returns the time of the last one. `unserved` gets the jobs that are given up. */
static i64 loop(Core *core, i64 begin, Vector *unserved)
{
    i64 now = begin, arrival = 0, count = core->count, idle_since = begin, soon = count ? core->submit.at[0] : NEVER;
    /* An event that never comes, so that the heap is never empty. */
    heap_push(&core->events, (i128)NEVER << 51);
    while (!core->failed) {
        i128 top = core->events.at[0];
        i64 when = now = TIME(top);
        if (when < soon) {
            if (!core->waiting_count && KIND(top) == CHECK) {
                release_due(core, core->pools[PAYLOAD(heap_pop(&core->events))], now, 0);
                core->now = now;
                if (core->running || soon < NEVER)
                    idle_since = now;
                continue;
            }
        } else if (soon == NEVER) {
            return core->now;
        } else {
            now = soon;
        }
        i64 ready = core->waiting_count && core->readies.count ? next_ready(core, core->now) : NEVER;
        if (ready < now)
            now = ready;
        if (core->ordered && (now == soon || (core->waiting_count && (core->now / LOOK_S + 1) * LOOK_S <= now)))
            ASK(core, "order_jobs", "LLL", arrival, core->now, now);
        core->now = now;
        core->full = now > core->shadow && (now == soon || now == ready);
        core->asked = 0;
        if (when == now && KIND(top) < BOOT)
            handle_ends(core, now);
        if (TIME(core->events.at[0]) == now)
            handle_boots(core, now);
        while (soon == now && !core->failed) {
            if (!core->is_misfit.count || !core->is_misfit.at[arrival]) {
                arrive(core, arrival, now);
                core->asked = 1;
            }
            arrival++;
            idle_since = now;
            if (arrival % PROGRESS_EVERY == 0)
                ASK(core, "progressed", "i", PROGRESS_EVERY);
            soon = arrival < count ? core->submit.at[arrival] : NEVER;
        }
        if (core->waiting_count && core->full)
            schedule(core, now);
        if (core->asked && (core->waiting_count || core->postponed || core->watches))
            grow(core, now);
        while (!core->failed && TIME(core->events.at[0]) == now && KIND(core->events.at[0]) & 4)
            handle_look(core, heap_pop(&core->events), now);
        if (arrival < count || core->running) {
            idle_since = now;
        } else if (now - idle_since > core->patience) {
            for (i64 index = 0; index < core->waiting_count; index++)
                vector_push(unserved, waiting_at(core)[index]);
            core->waiting_count = 0;
        }
    }
    return core->now;
}

/* --- what Python sees --------------------------------------------------------------------------------------- */

/* connect(pools, columns): set the pools, and the columns of the jobs in this order. */
static PyObject *core_connect(PyObject *self, PyObject *args)
{
    Core *core = (Core *)self;
    PyObject *pools, *columns;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &pools, &PyList_Type, &columns))
        return NULL;
    struct {
        Column *column;
        int is_writable;
    } ours[] = {
        {&core->submit, 0}, {&core->work, 0},  {&core->limit, 0}, {&core->procs, 0}, {&core->memory, 0},
        {&core->gpus, 0},   {&core->user, 0},  {&core->first, 1}, {&core->ended, 1}, {&core->where, 1},
        {&core->order_of, 1}, {&core->is_misfit, 0},
    };
    for (Py_ssize_t index = 0; index < (Py_ssize_t)(sizeof ours / sizeof *ours); index++) {
        PyObject *column = PyList_GetItem(columns, index);
        if (!column || column_open(ours[index].column, column, ours[index].is_writable ? PyBUF_WRITABLE : 0) < 0)
            return NULL;
    }
    core->count = core->submit.count;
    core->pools_count = (i64)PyList_Size(pools);
    core->pools = resized(NULL, (size_t)core->pools_count * sizeof(Pool *));
    for (i64 index = 0; index < core->pools_count; index++)
        core->pools[index] = (Pool *)Py_NewRef(PyList_GetItem(pools, (Py_ssize_t)index));
    core->least = resized(NULL, (size_t)core->count * sizeof(int));
    for (i64 job = 0; job < core->count; job++) {
        i64 least = INT_MAX; /* a larger need fits into no pool in any case */
        for (i64 pool = 0; pool < core->pools_count; pool++)
            least = core->pools[pool]->needs.at[job] < least ? core->pools[pool]->needs.at[job] : least;
        core->least[job] = (int)least;
    }
    core->run_of = resized(NULL, (size_t)core->count * sizeof(int));
    for (i64 job = 0; job < core->count; job++)
        core->run_of[job] = -1;
    core->runs_unused = core->runs_first = core->runs_last = -1;
    core->shadow = NEVER;
    core->head = -NEVER;
    core->looks = core->opens = -1;
    core->last_ready = -NEVER;
    Py_RETURN_NONE;
}

/* grow_by(covered, begun): let the policy in `policy` start machines. Both are a byte for each job. */
static PyObject *core_grow_by(PyObject *self, PyObject *args)
{
    Core *core = (Core *)self;
    PyObject *covered, *begun;
    if (!PyArg_ParseTuple(args, "OO", &covered, &begun))
        return NULL;
    if (PyObject_GetBuffer(covered, &core->covered_view, PyBUF_WRITABLE) < 0)
        return NULL;
    core->covered = core->covered_view.buf;
    if (PyObject_GetBuffer(begun, &core->begun_view, PyBUF_WRITABLE) < 0)
        return NULL;
    core->begun = core->begun_view.buf;
    if (core->covered_view.len < core->count || core->begun_view.len < core->count) {
        PyErr_SetString(PyExc_ValueError, "columns have different lengths");
        return NULL;
    }
    for (i64 index = 0; index < core->pools_count; index++)
        if (core->pools[index]->machines > core->pools[index]->standing)
            vector_push(&core->growing, index);
    core->dealing = dealing_new(core->growing.count);
    Py_RETURN_NONE;
}

/* run(site, begin): simulate all jobs. Returns (time of the last event, jobs that were given up). */
static PyObject *core_run(PyObject *self, PyObject *args)
{
    Core *core = (Core *)self;
    i64 begin;
    if (!PyArg_ParseTuple(args, "OL", &core->site, &begin))
        return NULL;
    for (i64 index = 0; index < core->pools_count; index++) {
        Pool *pool = core->pools[index];
        if (!pool->standing)
            continue;
        i64 batch = pool_batch(pool, begin, pool->standing, pool->live_of.count - 1, -1);
        pool->batch_due.at[batch] = NEVER;
        pool->idle += pool->standing;
        idle_put(pool, batch, pool->standing, 0);
    }
    if (core->watches && core->count)
        plan_look(core, begin);
    Vector unserved = {NULL, 0, 0};
    i64 now = loop(core, begin, &unserved);
    core->site = NULL;
    PyObject *list = core->failed ? NULL : list_of(unserved.at, unserved.count);
    PyMem_Free(unserved.at);
    return list ? Py_BuildValue("(LN)", now, list) : NULL;
}

static PyObject *core_waiting(PyObject *self, PyObject *unused)
{
    (void)unused;
    return list_of(waiting_at((Core *)self), ((Core *)self)->waiting_count);
}

/* Whether a call from Python may go on: an exception of an earlier question ends the run. */
static PyObject *finished(Core *core)
{
    if (core->failed) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "the simulation has failed before");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *core_schedule(PyObject *self, PyObject *args)
{
    i64 now;
    if (!PyArg_ParseTuple(args, "L", &now))
        return NULL;
    schedule((Core *)self, now);
    return finished((Core *)self);
}

static PyObject *core_look_again(PyObject *self, PyObject *args)
{
    i64 now;
    if (!PyArg_ParseTuple(args, "L", &now))
        return NULL;
    look_again((Core *)self, now);
    return finished((Core *)self);
}

static PyObject *core_boot_ahead(PyObject *self, PyObject *args)
{
    Core *core = (Core *)self;
    i64 pool, count, now, least;
    if (!PyArg_ParseTuple(args, "LLLL", &pool, &count, &now, &least))
        return NULL;
    boot_ahead(core, core->pools[pool], count, now, least);
    return finished(core);
}

static PyObject *core_plan_look(PyObject *self, PyObject *args)
{
    i64 when;
    if (!PyArg_ParseTuple(args, "L", &when))
        return NULL;
    plan_look((Core *)self, when);
    Py_RETURN_NONE;
}

/* look_at(when, number): plan a look at a purchase. */
static PyObject *core_look_at(PyObject *self, PyObject *args)
{
    i64 when, number;
    if (!PyArg_ParseTuple(args, "LL", &when, &number))
        return NULL;
    push((Core *)self, when, LOOK, number);
    Py_RETURN_NONE;
}

/* earliest(pool, need, now): when so many machines of a pool should be free, and how many more are free then. */
static PyObject *core_earliest(PyObject *self, PyObject *args)
{
    Core *core = (Core *)self;
    i64 pool, need, now, extra;
    if (!PyArg_ParseTuple(args, "LLL", &pool, &need, &now))
        return NULL;
    i64 when = earliest(core, core->pools[pool], need, now, &extra);
    return Py_BuildValue("(LL)", when, extra);
}

/* add_order(pools): an order in which jobs use the pools. Returns its number. */
static PyObject *core_add_order(PyObject *self, PyObject *args)
{
    Core *core = (Core *)self;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &list))
        return NULL;
    vector_push(&core->order_begins, core->orders.count);
    for (Py_ssize_t index = 0; index < PyList_Size(list); index++)
        vector_push(&core->orders, PyLong_AsLongLong(PyList_GetItem(list, index)));
    vector_push(&core->orders, -1);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(core->order_begins.count - 1);
}

/* Free everything but the sums. */
static void core_free(Core *core)
{
    for (i64 at = core->pools_count ? core->runs_first : -1; at >= 0; at = core->runs[at].after)
        PyMem_Free(core->runs[at].pieces.at);
    for (i64 index = 0; index < core->pools_count; index++)
        Py_DECREF((PyObject *)core->pools[index]);
    Column *columns[] = {&core->submit, &core->work, &core->limit, &core->procs, &core->memory, &core->gpus,
                         &core->user, &core->first, &core->ended, &core->where, &core->order_of, &core->is_misfit};
    for (size_t index = 0; index < sizeof columns / sizeof *columns; index++)
        column_close(columns[index]);
    if (core->covered)
        PyBuffer_Release(&core->covered_view);
    if (core->begun)
        PyBuffer_Release(&core->begun_view);
    core->covered = core->begun = NULL;
    dealing_free(core->dealing);
    core->dealing = NULL;
    void *made[] = {core->least, core->growing.at, core->pools, core->orders.at, core->order_begins.at, core->events.at, core->due_looks.at,
                    core->runs, core->run_of, core->waiting, core->readies.at, core->sales.at};
    for (size_t index = 0; index < sizeof made / sizeof *made; index++)
        PyMem_Free(made[index]);
    core->pools = NULL;
    core->runs = NULL;
    core->least = NULL;
    core->run_of = NULL;
    core->waiting = NULL;
    core->pools_count = core->waiting_count = core->waiting_first = core->waiting_room = 0;
    core->orders = core->order_begins = core->due_looks = core->growing = (Vector){NULL, 0, 0};
    core->events = core->readies = (Keys){NULL, 0, 0};
    core->sales = (Pieces){NULL, 0, 0};
    core->failed = 1; /* nothing can be run with it any more */
}

static PyObject *core_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    core_free((Core *)self);
    Py_RETURN_NONE;
}

static void core_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    core_free((Core *)self);
    PyObject_Free(self);
    Py_DECREF(type);
}

#define CORE_FIELD(name) {#name, T_LONGLONG, offsetof(Core, name), 0, NULL}
#define CORE_FLOAT(name) {#name, T_DOUBLE, offsetof(Core, name), 0, NULL}

static PyMemberDef core_members[] = {
    CORE_FIELD(direct), CORE_FIELD(depth), CORE_FIELD(reuse), CORE_FIELD(period), CORE_FIELD(watches),
    CORE_FIELD(free_of_bounds), CORE_FIELD(patience), CORE_FIELD(counts_boots), CORE_FIELD(requeue_delay),
    CORE_FIELD(unlimited), CORE_FIELD(guarded), CORE_FIELD(unhelped), CORE_FIELD(ordered), CORE_FIELD(starts_unasked), CORE_FIELD(now),
    CORE_FIELD(postponed), CORE_FIELD(last_ready), CORE_FIELD(running), CORE_FIELD(held), CORE_FIELD(useful),
    CORE_FIELD(lost), CORE_FIELD(interruptions), CORE_FIELD(full), CORE_FIELD(stale), CORE_FIELD(shadow),
    CORE_FIELD(head), CORE_FIELD(waiting_count), CORE_FIELD(policy), CORE_FIELD(group), CORE_FIELD(slots),
    CORE_FIELD(wait_limit), CORE_FIELD(size), CORE_FIELD(short_s), CORE_FIELD(most_machines), CORE_FIELD(most_booting),
    CORE_FIELD(begun_count), CORE_FLOAT(work_per_machine), CORE_FLOAT(most_work), CORE_FLOAT(least_work),
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef core_methods[] = {
    {"connect", core_connect, METH_VARARGS, "Set the pools, and the columns of the jobs."},
    {"grow_by", core_grow_by, METH_VARARGS, "Let one of our own policies start machines."},
    {"run", core_run, METH_VARARGS, "Simulate all jobs."},
    {"close", core_close, METH_NOARGS, "Free everything but the sums."},
    {"waiting", core_waiting, METH_NOARGS, "Return the waiting jobs."},
    {"schedule", core_schedule, METH_VARARGS, "Pass over the whole queue."},
    {"look_again", core_look_again, METH_VARARGS, "Plan postponed releases."},
    {"boot_ahead", core_boot_ahead, METH_VARARGS, "Boot machines for no job in particular."},
    {"plan_look", core_plan_look, METH_VARARGS, "Plan a look at the queue."},
    {"look_at", core_look_at, METH_VARARGS, "Plan a look at a purchase."},
    {"earliest", core_earliest, METH_VARARGS, "Return when machines should be free, and how many more."},
    {"add_order", core_add_order, METH_VARARGS, "Add an order of pools."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot core_slots[] = {
    {Py_tp_dealloc, core_dealloc},
    {Py_tp_members, core_members},
    {Py_tp_methods, core_methods},
    {0, NULL},
};

static PyType_Spec core_spec = {
    "slurm_elastic.simulate.core._core.Core", sizeof(Core), 0, Py_TPFLAGS_DEFAULT, core_slots,
};

#endif
