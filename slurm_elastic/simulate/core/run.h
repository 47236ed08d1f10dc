/* The state of a run, and its events: jobs start, end and are interrupted; machines boot, idle and end. The rules are
 * those of events.py, runs.py and bills/losses.py, whose names are used here. */
#ifndef SLURM_ELASTIC_RUN_H
#define SLURM_ELASTIC_RUN_H

#include "pool.h"

enum { END, FALL, ARRIVE, BOOT, CHECK, LOOK, WARN, MOVE };

/* See events.py. */
#define POOLS 65536
#define WINDOW_LOOK_S 60
#define KIND(event) ((int)(((event) >> 48) & 7))
#define TIME(event) ((i64)((event) >> 51))
#define PAYLOAD(event) ((i64)((event) & 0xFFFFFFFFFFFF))

typedef struct {
    i64 job, pool, need, assigned_at, ready, idle, end, work;
    i128 expected;
    Pieces pieces;
    Host *host;       /* the shared machine that it runs on */
    i64 before, after; /* running jobs in the order of their starts */
} Run;

typedef struct {
    Host *host;
    i64 when;
    Share left;
} Seat;

typedef struct {
    PyObject_HEAD
    PyObject *site; /* the Python side of the run */
    i64 count, pools_count;
    Pool **pools;
    int *least; /* by job, the fewest machines that it needs in any pool */
    Column submit, work, limit, procs, memory, gpus, user, first, ended, where, order_of, is_misfit;
    /* by order, the numbers of its pools; -1 ends it */
    Vector orders, order_begins;
    i64 ordered;
    i64 direct, depth, reuse, period, watches, free_of_bounds, patience, counts_boots, requeue_delay;
    i64 unlimited, guarded, unhelped;
    i64 starts_unasked; /* the growth policy may start machines while no job waits */
    i64 now, asked, looks, opens, postponed, last_ready;
    Keys events;
    Vector due_looks;
    /* runs */
    Run *runs;
    i64 runs_count, runs_room, runs_unused, runs_first, runs_last, running;
    int *run_of; /* by job, its place in `runs`; -1 */
    i64 held, useful, lost, interruptions;
    /* the queue: waiting jobs from `first_waiting` on */
    i64 *waiting;
    i64 waiting_count, waiting_first, waiting_room;
    Keys readies;
    i64 full, stale, shadow, extra, head;
    Pool *reserved;
    i64 has_seat;
    Seat seat;
    Pieces sales;
    /* Growth by our own policies, which need not be asked (grow.h). `covered`, `begun`: by job, as in Grower. */
    i64 policy, group, slots, wait_limit, size, short_s, most_machines, most_booting, begun_count;
    double work_per_machine, most_work, least_work;
    Py_buffer covered_view, begun_view;
    unsigned char *covered, *begun;
    Vector growing; /* the pools that can grow */
    struct Dealing *dealing;
    int failed;
} Core;

static inline Run *run_at(Core *core, i64 job) { return &core->runs[core->run_of[job]]; }

static void push(Core *core, i64 when, int kind, i64 payload)
{
    heap_push(&core->events, ((((i128)when << 3) | kind) << 48) | payload);
}

static PyObject *list_of(const i64 *values, i64 count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (i64 index = 0; list && index < count; index++) {
        PyObject *number = PyLong_FromLongLong(values[index]);
        if (!number || PyList_SetItem(list, (Py_ssize_t)index, number) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* --- questions to Python ------------------------------------------------------------------------------------ */

/* Take the answer to a question. NULL, and the run fails, if Python raised an exception. */
static PyObject *answered(Core *core, PyObject *answer)
{
    if (!answer)
        core->failed = 1;
    return answer;
}

static i64 number_of(Core *core, PyObject *answer)
{
    if (!answered(core, answer))
        return 0;
    i64 number = answer == Py_None ? -1 : PyLong_AsLongLong(answer);
    Py_DECREF(answer);
    if (number == -1 && PyErr_Occurred())
        core->failed = 1;
    return number;
}

#define ASK(core, ...) ((core)->failed ? 0 : number_of(core, PyObject_CallMethod((core)->site, __VA_ARGS__)))

static i64 boot_seconds(Core *core, Pool *pool, i64 count)
{
    i64 seconds = map_get(&pool->boots, count);
    if (seconds < 0) {
        seconds = ASK(core, "boot_seconds", "LL", pool->number, count);
        map_put(&pool->boots, count, seconds);
    }
    return seconds;
}

static i64 boot_delay(Core *core, Pool *pool, i64 count, i64 now)
{
    if (pool->has_turns)
        return ASK(core, "boot_delay", "LLL", pool->number, count, now);
    return boot_seconds(core, pool, count);
}

/* Fill `core->sales` with the (offer, machines) of a list. */
static void read_sales(Core *core, PyObject *list)
{
    core->sales.count = 0;
    if (!answered(core, list))
        return;
    Py_ssize_t count = PyList_Size(list);
    for (Py_ssize_t index = 0; index < count; index++) {
        i64 offer, machines;
        if (!PyArg_ParseTuple(PyList_GetItem(list, index), "LL", &offer, &machines)) {
            core->failed = 1;
            break;
        }
        pieces_push(&core->sales, offer, machines);
    }
    Py_DECREF(list);
}

/* What may be bought changes with cool-downs, which purchases and losses of machines begin and end. */
static void forget_rooms(Core *core);

static void buy(Core *core, Pool *pool, i64 count, i64 now, int whole, i64 needs_s, i64 least)
{
    Decision *decision = pool->decision;
    if (count <= decision->left && now < decision->until &&
        count <= decision->stock - pool->live_of.at[decision->offer]) {
        decision->left -= count;
        core->sales.count = 0;
        pieces_push(&core->sales, decision->offer, count);
    } else if (!core->failed) {
        forget_rooms(core);
        read_sales(core, PyObject_CallMethod(core->site, "decide", "LLLiLL", pool->number, count, now, whole, needs_s,
                                             least));
    }
    if (!core->unlimited)
        for (i64 other = 0; other < core->pools_count; other++)
            if (core->pools[other] != pool)
                core->pools[other]->decision->left = 0;
}

/* --- looks -------------------------------------------------------------------------------------------------- */

static void plan_look(Core *core, i64 when)
{
    if (vector_find(&core->due_looks, when) >= 0)
        return;
    vector_push(&core->due_looks, when);
    push(core, when, LOOK, 0);
}

static void look_later(Core *core, i64 now)
{
    if (core->opens > now)
        return;
    i64 pause = core->period > 0 ? core->period : 1;
    core->opens = now + (pause > WINDOW_LOOK_S ? pause : WINDOW_LOOK_S);
    plan_look(core, core->opens);
}

/* Whether growth policies count any waiting job. */
static int counts_any(Core *core, i64 now)
{
    if (!core->waiting_count || !core->unhelped)
        return core->waiting_count > 0;
    return ASK(core, "counts_any", "L", now) > 0;
}

/* --- machines ----------------------------------------------------------------------------------------------- */

/* Plan the check of idle machines. Pushes an event if no check is planned for that second. `kept_at`: the second before
 * `now` if they were due then and had to stay; else -1. */
static void check_later(Core *core, Pool *pool, i64 batch, i64 since, i64 now, i64 kept_at)
{
    i64 idle_since = pool->sinces ? since : now, when;
    idle_since = kept_at >= 0 ? kept_at : idle_since;
    if (pool->after >= 0) {
        when = idle_since + pool->after;
        when = when < now ? now : when;
        when += modulo(-when, pool->grid);
    } else {
        when = ASK(core, "due_on_grid", "LLLL", pool->number, pool->batch_start.at[batch], idle_since, now);
    }
    pool->batch_due.at[batch] = when;
    if (due_add(pool, when, batch, since))
        push(core, when, CHECK, pool->number);
}

static void put_idle(Core *core, Pool *pool, i64 batch, i64 count, i64 now)
{
    pool->idle += count;
    i64 due_at = pool->batch_due.at[batch];
    if (pool->sinces) {
        idle_put(pool, batch, count, now);
        if (due_at != NEVER && !pool->flagged)
            check_later(core, pool, batch, now, now, -1);
        return;
    }
    idle_put(pool, batch, count, 0);
    if (due_at <= now && !pool->flagged)
        check_later(core, pool, batch, 0, now, -1);
}

static int by_batch(const void *one, const void *other)
{
    const Due *a = one, *b = other;
    if (a->batch != b->batch)
        return a->batch < b->batch ? -1 : 1;
    return (a->since > b->since) - (a->since < b->since);
}

/* Release the idle machines that are due, except the last `kept`. Their idle time begins anew
 * (PoolMachines.keep_longer). */
static i64 release_due(Core *core, Pool *pool, i64 when, i64 kept)
{
    i64 released = 0, due_count = 0;
    for (i64 row = map_get(&pool->due, when); row >= 0; row = pool->dues[row].next)
        due_count++;
    Due *due = resized(NULL, (size_t)due_count * sizeof(Due));
    i64 place = 0;
    for (i64 row = due_pop(pool, when); row >= 0; row = due_next(pool, row))
        due[place++] = pool->dues[row];
    if (kept && due_count)
        qsort(due, (size_t)due_count, sizeof(Due), by_batch);
    for (place = 0; place < due_count; place++) {
        i64 batch = due[place].batch, since = due[place].since;
        i64 releasable = pool->idle > kept ? pool->idle - kept : 0;
        i64 count = idle_remove(pool, batch, since, releasable);
        if (kept && count == releasable)
            check_later(core, pool, batch, since, when + 1, when);
        if (!count)
            continue;
        pool->idle -= count;
        pool_end(pool, batch, count, when, 0);
        released += count;
    }
    PyMem_Free(due);
    pool->releases += released > 0;
    return released;
}

/* Plan new checks of the machines whose release was postponed. */
static void check_again(Core *core, Pool *pool, i64 now)
{
    Vector postponed = pool->postponed;
    pool->postponed = (Vector){NULL, 0, 0};
    for (i64 index = 0; index < postponed.count; index += 2)
        check_later(core, pool, postponed.at[index], postponed.at[index + 1], now, -1);
    PyMem_Free(postponed.at);
}

static void look_again(Core *core, i64 now)
{
    if (!core->postponed || counts_any(core, now))
        return;
    core->postponed = 0;
    for (i64 pool = 0; pool < core->pools_count; pool++)
        check_again(core, core->pools[pool], now);
}

static void release_or_idle(Core *core, Pool *pool, i64 batch, i64 count, i64 now)
{
    if ((pool->draining || !core->reuse) && pool->batch_due.at[batch] != NEVER) {
        i64 ended = count;
        if (core->reuse) {
            ended = pool->draining < count ? pool->draining : count;
            pool->draining -= ended;
        }
        pool_end(pool, batch, ended, now, 0);
        pool->releases++;
        count -= ended;
    }
    if (count)
        put_idle(core, pool, batch, count, now);
}

/* Plan the next loss of spot machines in a pool. */
static void plan_next_loss(Core *core, Pool *pool, i64 now)
{
    if (core->failed || losses_known(pool, now))
        return;
    PyObject *list = answered(core, PyObject_CallMethod(core->site, "next_losses", "LL", pool->number, now));
    for (Py_ssize_t index = 0; list && index < PyList_Size(list); index++) {
        i64 when, offer;
        if (!PyArg_ParseTuple(PyList_GetItem(list, index), "LL", &when, &offer)) {
            core->failed = 1;
            break;
        }
        push(core, when, FALL, offer * POOLS + pool->number);
    }
    Py_XDECREF(list);
}

/* Launch the machines of `core->sales`, and add them to `pieces`. Returns when they are ready. */
static i64 launch(Core *core, Pool *pool, i64 now, Pieces *pieces)
{
    i64 count = 0;
    for (i64 index = 0; index < core->sales.count; index++)
        count += core->sales.at[index].count;
    i64 ready = now + boot_seconds(core, pool, count), begin = pool->pays_boots ? now : ready;
    for (i64 index = 0; index < core->sales.count; index++) {
        Piece sale = core->sales.at[index];
        pieces_push(pieces, pool_batch(pool, begin, sale.count, sale.batch, ready), sale.count);
    }
    pool->launches += core->sales.count;
    pool->booting += count;
    return ready;
}

/* Launch the machines of `core->sales`, in waves if not all may boot at once. */
static i64 launch_waves(Core *core, Pool *pool, i64 now, Pieces *pieces)
{
    if (!pool->has_turns)
        return launch(core, pool, now, pieces);
    i64 count = 0, latest = 0, sale = 0;
    Pieces sales = core->sales, wave = {NULL, 0, 0};
    for (i64 index = 0; index < sales.count; index++)
        count += sales.at[index].count;
    PyObject *list = answered(core, PyObject_CallMethod(core->site, "waves", "LLL", pool->number, count, now));
    for (Py_ssize_t index = 0; list && index < PyList_Size(list); index++) {
        i64 begin, size;
        if (!PyArg_ParseTuple(PyList_GetItem(list, index), "LL", &begin, &size)) {
            core->failed = 1;
            break;
        }
        wave.count = 0;
        while (size) {
            i64 available = sales.at[sale].count, used = size < available ? size : available;
            pieces_push(&wave, sales.at[sale].batch, used);
            sales.at[sale].count -= used;
            sale += used == available;
            size -= used;
        }
        core->sales = wave;
        i64 ready = launch(core, pool, begin, pieces);
        latest = ready > latest ? ready : latest;
    }
    Py_XDECREF(list);
    core->sales = sales;
    PyMem_Free(wave.at);
    return latest;
}

/* Boot up to `count` machines for no job in particular, as many as are available. */
/* `least`: fewer machines are of no use to any job. */
static void boot_ahead(Core *core, Pool *pool, i64 count, i64 now, i64 least)
{
    buy(core, pool, count, now, 0, 0, least);
    if (core->failed || !core->sales.count)
        return;
    Pieces launched = {NULL, 0, 0};
    launch_waves(core, pool, now, &launched);
    for (i64 index = 0; index < launched.count && !core->failed; index++) {
        i64 batch = launched.at[index].batch, machines = launched.at[index].count;
        i64 ready = pool->batch_ready.at[batch];
        expect_boot(pool, batch, machines, ready);
        push(core, ready, BOOT, batch * POOLS + pool->number);
        if (core->guarded)
            ASK(core, "guard_started", "LLLL", pool->number, batch, machines, ready);
    }
    PyMem_Free(launched.at);
    if (pool->spots)
        plan_next_loss(core, pool, now);
    if (now < core->shadow)
        core->shadow = now; /* outdated: the first job may be able to start earlier */
}

/* --- runs --------------------------------------------------------------------------------------------------- */

static Run *run_new(Core *core, i64 job)
{
    i64 place = core->runs_unused;
    if (place >= 0) {
        core->runs_unused = core->runs[place].after;
    } else {
        place = core->runs_count++;
        if (place >= core->runs_room) {
            core->runs_room = core->runs_room ? 2 * core->runs_room : 64;
            core->runs = resized(core->runs, (size_t)core->runs_room * sizeof(Run));
        }
    }
    Run *run = &core->runs[place];
    memset(run, 0, sizeof *run);
    run->job = job;
    run->before = core->runs_last;
    run->after = -1;
    if (core->runs_last >= 0)
        core->runs[core->runs_last].after = place;
    else
        core->runs_first = place;
    core->runs_last = place;
    core->run_of[job] = (int)place;
    core->running++;
    return run;
}

/* Take a run out. The caller has copied it, and frees its pieces. */
static void run_remove(Core *core, i64 job)
{
    i64 place = core->run_of[job];
    Run *run = &core->runs[place];
    if (run->before >= 0)
        core->runs[run->before].after = run->after;
    else
        core->runs_first = run->after;
    if (run->after >= 0)
        core->runs[run->after].before = run->before;
    else
        core->runs_last = run->before;
    run->after = core->runs_unused;
    core->runs_unused = place;
    core->run_of[job] = -1;
    core->running--;
}

static Run *run_begin(Core *core, i64 job, Pool *pool, Pieces pieces, i64 need, i64 now, i64 ready, i64 idle)
{
    if (core->first.at[job] < 0)
        core->first.at[job] = ready;
    Run *run = run_new(core, job);
    run->pool = pool->number;
    run->need = need;
    run->assigned_at = now;
    run->ready = ready;
    run->idle = idle;
    run->work = core->work.at[job];
    run->end = ready + run->work;
    run->expected = expectation(ready + core->limit.at[job], job, need);
    run->pieces = pieces;
    core->where.at[job] = pool->number;
    push(core, run->end, END, job);
    return run;
}

static void run_finish(Core *core, const Run *run, i64 now)
{
    run_remove(core, run->job);
    core->ended.at[run->job] = now;
    if (run->idle)
        core->held += run->idle * (run->ready - run->assigned_at);
    core->useful += run->need * run->work;
}

/* Interrupt a run. No checkpoint policy is modelled, so all its work is lost. */
static void run_interrupt(Core *core, const Run *run, i64 now)
{
    run_remove(core, run->job);
    core->interruptions++;
    if (now <= run->ready) {
        core->held += run->idle * (now - run->assigned_at);
        if (now < run->ready && run->ready == core->first.at[run->job])
            core->first.at[run->job] = -1; /* the run never began, and the next may begin earlier */
        return;
    }
    core->held += run->idle * (run->ready - run->assigned_at);
    core->lost += run->need * (now - run->ready);
}

/* --- shared machines ---------------------------------------------------------------------------------------- */

static Share share_of(Core *core, Pool *pool, i64 job)
{
    i64 memory = pool->whole.memory ? core->memory.at[job] : 0;
    return (Share){core->procs.at[job], memory, core->gpus.at[job]};
}

static i64 user_of(Core *core, Pool *pool, i64 job) { return pool->by_user ? core->user.at[job] : -2; }

static int is_whole(const Pool *pool, Share share)
{
    return share.cores == pool->whole.cores && share.memory == pool->whole.memory && share.gpus == pool->whole.gpus;
}

static void host_join(Core *core, Pool *pool, Run *run, Host *host)
{
    keys_insert(&host->ends, run->expected);
    host_left(pool, host, minus(host->left, share_of(core, pool, run->job)));
    run->host = host;
}

/* Take a job off a shared machine. After the last job the machine is no longer in `hosts`; the caller frees it. */
static void leave_shared(Core *core, Pool *pool, const Run *run, i64 now)
{
    Host *host = run->host;
    expected_drop(pool, host_expected(host));
    keys_delete(&host->ends, run->expected);
    host->used += now > run->ready ? now - run->ready : 0;
    host_left(pool, host, plus(host->left, share_of(core, pool, run->job)));
    if (host->ends.count) {
        expected_add(pool, host_expected(host));
        return;
    }
    host_close(pool, host);
    pool->overlap += host->used - (now > host->ready ? now - host->ready : 0);
}

/* --- starts and ends ---------------------------------------------------------------------------------------- */

static void join_shared(Core *core, i64 job, Pool *pool, Host *host, i64 now)
{
    i128 before = host_expected(host);
    Pieces pieces = {NULL, 0, 0};
    pieces_push(&pieces, host->piece.batch, host->piece.count);
    Run *run = run_begin(core, job, pool, pieces, 1, now, now > host->ready ? now : host->ready, 0);
    host_join(core, pool, run, host);
    expected_drop(pool, before);
    expected_add(pool, host_expected(host));
}

static i64 boot_for(Core *core, Pool *pool, Pieces *pieces, i64 now)
{
    i64 first = pieces->count, count = 0;
    i64 ready = launch_waves(core, pool, now, pieces);
    for (i64 index = first; index < pieces->count; index++) {
        count += pieces->at[index].count;
        if (!core->counts_boots)
            continue;
        pool->booked.at[pieces->at[index].batch] = 1;
        push(core, ready, BOOT, pieces->at[index].batch * POOLS + pool->number);
    }
    if (!core->counts_boots) {
        pool->booting -= count;
        pool->busy += count;
        heap_push(&core->readies, ready);
        core->last_ready = ready > core->last_ready ? ready : core->last_ready;
    }
    pool->busy_area -= count * ready;
    if (pool->spot_live)
        plan_next_loss(core, pool, now);
    return ready;
}

static int start(Core *core, i64 job, Pool *pool, i64 need, i64 now, Host *beside)
{
    int is_shared = pool->sharing && need == 1;
    if (is_shared && beside) {
        join_shared(core, job, pool, beside, now);
        if (core->ordered)
            ASK(core, "order_started", "L", job);
        return 1;
    }
    i64 idle = core->reuse ? pool->idle : 0, ready = now;
    Pieces pieces = {NULL, 0, 0};
    if (need <= idle) {
        idle = need;
        pool_take(pool, need, now, &pieces);
    } else {
        buy(core, pool, need - idle, now, 1, 0, 1);
        if (core->failed || !core->sales.count) {
            /* The refusal holds the pool, so other jobs may now start fewer machines there. */
            core->full = core->stale = 1;
            return 0;
        }
        if (idle)
            pool_take(pool, idle, now, &pieces);
        ready = boot_for(core, pool, &pieces, now);
    }
    Run *run = run_begin(core, job, pool, pieces, need, now, ready, idle);
    expected_add(pool, run->expected);
    if (is_shared && !is_whole(pool, share_of(core, pool, job))) {
        Host *host = host_open(pool, pieces.at[0], ready, idle, user_of(core, pool, job));
        host_join(core, pool, run, host);
    }
    if (core->ordered)
        ASK(core, "order_started", "L", job);
    return 1;
}

/* Whether the policy must be asked when machines of a pool are ready. */
static int must_ask_policy(Core *core, Pool *pool)
{
    i64 growing = 0;
    for (i64 other = 0; other < core->pools_count; other++)
        growing += core->pools[other]->machines > core->pools[other]->standing;
    return core->period > 0 || pool->has_turns || (growing > 1 && !core->running);
}

static void handle_boot(Core *core, Pool *pool, i64 batch, i64 now)
{
    i64 count = pool->batch_live.at[batch];
    if (pool->booked.at[batch]) {
        pool->booked.at[batch] = 0;
        pool->booting -= count;
        pool->busy += count;
    } else if (pool->coming.at[batch]) {
        expected_drop(pool, coming_pop(pool, batch));
        pool->booting -= count;
        release_or_idle(core, pool, batch, count, now);
        core->full = 1;
        core->asked = core->asked || must_ask_policy(core, pool);
    }
}

/* End a job. 0 if the event is out of date, because the job was interrupted and ends later. */
static int end_run(Core *core, i64 job, i64 now)
{
    Run run = *run_at(core, job);
    Pool *pool = core->pools[run.pool];
    if (run.end != now)
        return 0;
    run_finish(core, &run, now);
    if (run.host) {
        leave_shared(core, pool, &run, now);
        if (run.host->ends.count) {
            PyMem_Free(run.pieces.at);
            return 1;
        }
        host_free(run.host);
    } else if (pool->tracks) {
        keys_delete(&pool->expected, run.expected);
    }
    if (run.ready == now)
        for (i64 index = 0; index < run.pieces.count; index++)
            if (pool->booked.at[run.pieces.at[index].batch])
                handle_boot(core, pool, run.pieces.at[index].batch, now);
    pool->busy -= run.need;
    pool->busy_area += run.need * now;
    int is_last = pool->draining || !core->reuse;
    for (i64 index = 0; index < run.pieces.count; index++) {
        if (is_last)
            release_or_idle(core, pool, run.pieces.at[index].batch, run.pieces.at[index].count, now);
        else
            put_idle(core, pool, run.pieces.at[index].batch, run.pieces.at[index].count, now);
    }
    PyMem_Free(run.pieces.at);
    return 1;
}

/* --- losses ------------------------------------------------------------------------------------------------- */

static i64 lose_booting(Pool *pool, i64 batch, i64 limit, i64 now)
{
    i64 live = pool->batch_live.at[batch], count = live < limit ? live : limit;
    if (count > 0) {
        pool->booting -= count;
        pool_end(pool, batch, count, now, 1);
    }
    return count;
}

static void requeue(Core *core, i64 job, i64 now)
{
    ASK(core, "interrupted", "LL", job, now);
    push(core, now + core->requeue_delay, ARRIVE, job);
}

static i64 stop_boot(Core *core, Pool *pool, const Run *run, Piece piece, i64 limit, i64 now)
{
    i64 batch = piece.batch;
    pool->busy_area += piece.count * run->ready;
    if (core->counts_boots) {
        pool->booked.at[batch] = 0;
    } else {
        pool->busy -= piece.count;
        pool->booting += piece.count;
    }
    i64 lost = lose_booting(pool, batch, limit, now);
    if (lost < piece.count) {
        i64 ready = pool->batch_ready.at[batch] > now ? pool->batch_ready.at[batch] : now;
        expect_boot(pool, batch, piece.count - lost, ready);
        push(core, ready, BOOT, batch * POOLS + pool->number);
    }
    return lost;
}

static int by_number(const void *one, const void *other)
{
    i64 a = *(const i64 *)one, b = *(const i64 *)other;
    return (a > b) - (a < b);
}

/* Interrupt the other jobs on a shared machine, by number; then `run` leaves it, as if it had been alone. */
static void interrupt_sharers(Core *core, Pool *pool, Run *run, i64 now)
{
    Host *host = run->host;
    Vector jobs = {NULL, 0, 0};
    for (i64 index = 0; index < host->ends.count; index++)
        if (expected_serial(host->ends.at[index]) != run->job)
            vector_push(&jobs, expected_serial(host->ends.at[index]));
    if (jobs.count)
        qsort(jobs.at, (size_t)jobs.count, sizeof(i64), by_number);
    for (i64 index = 0; index < jobs.count; index++) {
        Run other = *run_at(core, jobs.at[index]);
        run_interrupt(core, &other, now);
        leave_shared(core, pool, &other, now);
        PyMem_Free(other.pieces.at);
        requeue(core, other.job, now);
    }
    PyMem_Free(jobs.at);
    leave_shared(core, pool, run, now);
    run->ready = host->ready;
    run->idle = host->idle;
    host_free(host);
}

static i64 interrupt(Core *core, i64 job, Pool *pool, i64 batch, i64 limit, i64 now)
{
    Run run = *run_at(core, job);
    run_interrupt(core, &run, now);
    if (run.host)
        interrupt_sharers(core, pool, &run, now);
    else
        expected_drop(pool, run.expected);
    i64 lost = 0, up = run.ready < now ? run.need : run.idle;
    for (i64 index = 0; index < run.pieces.count; index++) {
        Piece piece = run.pieces.at[index];
        i64 ended = piece.count < limit - lost ? piece.count : limit - lost;
        ended = piece.batch == batch ? ended : 0;
        if (up <= 0) {
            lost += stop_boot(core, pool, &run, piece, ended, now);
            continue;
        }
        up -= piece.count;
        pool->busy -= piece.count;
        pool->busy_area += piece.count * now;
        if (ended) {
            pool_end(pool, piece.batch, ended, now, 1);
            lost += ended;
        }
        if (piece.count > ended)
            release_or_idle(core, pool, piece.batch, piece.count - ended, now);
    }
    PyMem_Free(run.pieces.at);
    requeue(core, job, now);
    return lost;
}

static i64 lose_idle(Pool *pool, i64 batch, i64 limit, i64 now)
{
    i64 lost = 0, place = 0;
    while (place < pool->free.count && lost < limit) {
        Entry entry = pool->free.at[place];
        if (entry.batch != batch) {
            place++;
            continue;
        }
        i64 count = entry.count < limit - lost ? entry.count : limit - lost;
        if (count == entry.count)
            entries_delete(&pool->free, place);
        else
            pool->free.at[place++].count -= count;
        pool->idle -= count;
        pool_end(pool, batch, count, now, 1);
        lost += count;
    }
    return lost;
}

/* Take machines of a batch: idle, then booting, then busy machines, of the latest job first. */
static i64 take_machines(Core *core, Pool *pool, i64 batch, i64 count, i64 now)
{
    i64 lost = lose_idle(pool, batch, count, now);
    if (lost < count && pool->coming.at[batch]) {
        expected_drop(pool, coming_pop(pool, batch));
        lost += lose_booting(pool, batch, count - lost, now);
        if (pool->batch_live.at[batch])
            expect_boot(pool, batch, pool->batch_live.at[batch], pool->batch_ready.at[batch]);
    }
    if (lost >= count)
        return lost;
    Vector jobs = {NULL, 0, 0};
    for (i64 place = core->runs_last; place >= 0; place = core->runs[place].before) {
        const Run *run = &core->runs[place];
        int holds = 0;
        for (i64 index = 0; run->pool == pool->number && index < run->pieces.count && !holds; index++)
            holds = run->pieces.at[index].batch == batch;
        if (holds)
            vector_push(&jobs, run->job);
    }
    for (i64 index = 0; index < jobs.count && lost < count && !core->failed; index++)
        if (core->run_of[jobs.at[index]] >= 0) /* else interrupted with another job on the same machine */
            lost += interrupt(core, jobs.at[index], pool, batch, count - lost, now);
    PyMem_Free(jobs.at);
    return lost;
}

static void take_spot_machines(Core *core, i64 payload, i64 now)
{
    Pool *pool = core->pools[payload % POOLS];
    i64 offer = payload / POOLS;
    /* -1: out of date, because the loss was planned for another time after this event. */
    forget_rooms(core);
    i64 surplus = ASK(core, "surplus", "LLL", pool->number, offer, now);
    if (surplus < 0 || core->failed)
        return;
    i64 batch = pool->batch_start.count;
    while (surplus > 0 && batch && !core->failed) {
        batch--;
        i64 live = pool->batch_live.at[batch];
        if (pool->batch_offer.at[batch] != offer || !live)
            continue;
        i64 lost = take_machines(core, pool, batch, surplus < live ? surplus : live, now);
        pool->reclaimed += lost;
        surplus -= lost;
    }
    core->full = core->asked = 1;
    plan_next_loss(core, pool, now);
}

#endif
