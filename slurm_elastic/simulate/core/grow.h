/* Growth by the product's own policies. The rules are those of policies/growth/ (capacity.py, counted_once.py,
 * allotting.py) and of Grower.wanted, whose names are used here. Python's Grower is asked for all other policies. */
#ifndef SLURM_ELASTIC_GROW_H
#define SLURM_ELASTIC_GROW_H

#include "queue.h"
#include <math.h>

/* The order of COMPILED in growing.py. */
enum { ASKED, ON_DEMAND, BURSTS, GROUP_BURSTS, RATIO, SEMI_ELASTIC, STEADY_STREAM };
enum { FIRST, SUM, BEST };

static inline Pool *growing_at(Core *core, i64 index) { return core->pools[core->growing.at[index]]; }

static i64 room_now(const Pool *pool)
{
    i64 room = pool_room(pool), turns = pool->max_booting - pool->booting;
    if (pool->max_booting < 0)
        return room;
    turns = turns > 0 ? turns : 0;
    return room < turns ? room : turns;
}

/* Whether growth takes new jobs into account only until their machines were started. */
static int counts_once(const Core *core)
{
    return core->policy == ON_DEMAND || core->policy == BURSTS || core->policy == GROUP_BURSTS;
}

/* --- the demand --------------------------------------------------------------------------------------------- */

typedef struct {
    i64 nodes, seconds, jobs; /* of jobs: their machines, the sum of their limits, their number */
} Work;

typedef struct {
    i64 count, idle, busy, booting, spare;
    const i64 *queue;
    Work all, fresh;
} Demand;

static inline i64 nodes_of(Core *core, i64 job) { return growing_at(core, 0)->needs.at[job]; }

static void add_work(Core *core, Work *work, i64 job)
{
    work->nodes += nodes_of(core, job);
    work->seconds += core->limit.at[job];
    work->jobs++;
}

/* Python's `seconds // share`: the quotient is rounded down after the division, never up by it. */
static i64 quotient(double seconds, double share)
{
    double rest = fmod(seconds, share), whole = (seconds - rest) / share, down = floor(whole);
    return (i64)(whole - down > 0.5 ? down + 1 : down);
}

static i64 machines_for(const Core *core, Work work)
{
    if (core->policy == GROUP_BURSTS)
        return core->group * work.jobs;
    if (core->policy != BURSTS)
        return work.nodes;
    i64 machines = work.seconds ? quotient((double)work.seconds, core->work_per_machine) : 0;
    return work.seconds && machines < 1 ? 1 : machines;
}

static Demand demand_of(Core *core, i64 count)
{
    Demand demand = {0};
    Work covered = {0, 0, 0};
    demand.queue = waiting_at(core);
    demand.count = count;
    for (i64 place = 0; place < count; place++) {
        i64 job = demand.queue[place];
        add_work(core, &demand.all, job);
        add_work(core, counts_once(core) && core->covered[job] ? &covered : &demand.fresh, job);
    }
    for (i64 index = 0; index < core->growing.count; index++) {
        const Pool *pool = growing_at(core, index);
        demand.idle += pool->idle;
        demand.busy += pool->busy - pool->draining;
        demand.booting += pool->booting;
    }
    i64 available = demand.idle + demand.booting;
    available = available > 0 ? available : 0;
    demand.idle = demand.idle > 0 ? demand.idle : 0;
    demand.spare = available;
    if (covered.jobs && available) {
        i64 needed = machines_for(core, covered);
        needed = needed > covered.nodes ? needed : covered.nodes;
        demand.spare = available > needed ? available - needed : 0;
    }
    return demand;
}

/* --- the policies: how many machines more; 0 for None ------------------------------------------------------- */

static i64 for_head(Core *core, const Demand *demand)
{
    if (!demand->count || core->running || demand->booting)
        return 0;
    i64 count = nodes_of(core, demand->queue[0]) - demand->idle;
    return count > 0 ? count : 0;
}

static i64 for_fresh(Core *core, const Demand *demand)
{
    i64 count = machines_for(core, demand->fresh) - demand->spare;
    return count > 0 ? count : for_head(core, demand);
}

static i64 ratio(Core *core, const Demand *demand)
{
    i64 running = core->running > 1 ? core->running : 1;
    i64 over = demand->idle + demand->busy + demand->booting ? demand->count - running : demand->count;
    over = over > 0 ? over : 0;
    i64 missing = (over + core->slots - 1) / core->slots - demand->booting;
    return missing > 0 ? missing : for_head(core, demand);
}

static i64 queue_size(Core *core, const Demand *demand)
{
    i64 nodes = 0, first_short = -1;
    if (core->size == FIRST)
        return nodes_of(core, demand->queue[0]);
    if (core->size == SUM)
        return demand->all.nodes;
    for (i64 place = 0; place < demand->count; place++) {
        i64 job = demand->queue[place];
        if (core->limit.at[job] > core->short_s)
            nodes += nodes_of(core, job);
        else if (first_short < 0)
            first_short = nodes_of(core, job);
    }
    return nodes + (first_short > 0 ? first_short : 0);
}

static i64 semi_elastic(Core *core, const Demand *demand, i64 now)
{
    if (!demand->count)
        return 0;
    i64 head = demand->queue[0];
    if (nodes_of(core, head) <= demand->idle + demand->busy + demand->booting && core->head != -NEVER) {
        i64 start = core->head > now ? core->head : now;
        if (start - core->submit.at[head] <= core->wait_limit)
            return 0;
    }
    i64 count = queue_size(core, demand) - demand->idle - demand->booting;
    return count > 0 ? count : 0;
}

static i64 steady_stream(Core *core, const Demand *demand)
{
    if (!(demand->idle + demand->busy + demand->booting))
        return 1;
    if (demand->booting || (double)demand->all.seconds <= core->most_work)
        return for_head(core, demand);
    return 1;
}

static i64 grown(Core *core, const Demand *demand, i64 now)
{
    switch (core->policy) {
    case RATIO:
        return ratio(core, demand);
    case SEMI_ELASTIC:
        return semi_elastic(core, demand, now);
    case STEADY_STREAM:
        return steady_stream(core, demand);
    default:
        return for_fresh(core, demand);
    }
}

/* --- rooms and bounds --------------------------------------------------------------------------------------- */

typedef struct {
    double left;
    i64 is_turn;
} PoolBound;

/* What the dealing of machines reads and writes. Arrays by growing pool; `costs`: bound by pool. */
struct Dealing {
    i64 *free, *now, *total;
    PoolBound *bounds;
    double *costs;
    i64 bounds_count, bounds_room;
    struct Dealt *shares; /* by place in the queue */
    i64 *fresh, *sure, *places;
    i64 jobs_room, fresh_count, sure_count, places_count;
    i64 *starts, *least; /* `least`: the fewest machines of `starts` that any job can use */
    /* The last answer of Purchases: how many machines may be bought, and by which bounds, until which second, for which
     * machines that are up and which rooms. */
    Vector key, asked_key, rooms;
    i64 rooms_until, answer_count;
    PoolBound *answer;
    double *answer_costs;
};

static void forget_rooms(Core *core)
{
    if (core->dealing)
        core->dealing->rooms_until = -1;
}

/* The machines of one job: of a growing pool (-1: there is no room for the job), `free` ones, and new ones that start
 * now and later. */
struct Dealt {
    i64 pool, free, starts, later;
};

static struct Dealing *dealing_new(i64 pools)
{
    struct Dealing *all = resized(NULL, sizeof *all);
    memset(all, 0, sizeof *all);
    all->free = filled(pools, 0);
    all->now = filled(pools, 0);
    all->total = filled(pools, 0);
    all->starts = filled(pools, 0);
    all->least = filled(pools, 0);
    all->rooms_until = -1;
    return all;
}

static void dealing_free(struct Dealing *all)
{
    if (!all)
        return;
    void *made[] = {all->free, all->now, all->total, all->starts, all->least, all->bounds, all->costs, all->shares, all->fresh,
                    all->sure, all->places, all->key.at, all->asked_key.at, all->rooms.at, all->answer,
                    all->answer_costs, all};
    for (size_t index = 0; index < sizeof made / sizeof *made; index++)
        PyMem_Free(made[index]);
}

static void add_bound(Core *core, double left, i64 is_turn, const double *costs)
{
    struct Dealing *all = core->dealing;
    i64 pools = core->growing.count;
    if (all->bounds_count == all->bounds_room) {
        all->bounds_room = all->bounds_room ? 2 * all->bounds_room : 8;
        all->bounds = resized(all->bounds, (size_t)all->bounds_room * sizeof(PoolBound));
        all->costs = resized(all->costs, (size_t)(all->bounds_room * pools) * sizeof(double));
    }
    all->bounds[all->bounds_count] = (PoolBound){left, is_turn};
    for (i64 pool = 0; pool < pools; pool++)
        all->costs[all->bounds_count * pools + pool] = costs ? costs[pool] : 1.0;
    all->bounds_count++;
}

static void add_common_bounds(Core *core)
{
    i64 up = 0, booting = 0;
    for (i64 index = 0; index < core->growing.count; index++) {
        const Pool *pool = growing_at(core, index);
        up += pool->idle + pool->busy + pool->booting - pool->draining;
        booting += pool->booting;
    }
    if (core->most_machines >= 0)
        add_bound(core, (double)(core->most_machines - up), 0, NULL);
    if (core->most_booting >= 0)
        add_bound(core, (double)(core->most_booting - booting), 1, NULL);
}

/* Store the answer (rooms, [(left, costs)], until) of Python. */
static void read_rooms_answer(Core *core, PyObject *answer)
{
    struct Dealing *all = core->dealing;
    PyObject *rooms, *bounds;
    i64 pools = core->growing.count, until;
    if (!answered(core, answer))
        return;
    all->rooms.count = all->answer_count = 0;
    if (PyArg_ParseTuple(answer, "O!O!L", &PyList_Type, &rooms, &PyList_Type, &bounds, &until)) {
        i64 count = (i64)PyList_Size(bounds);
        all->answer = resized(all->answer, (size_t)count * sizeof(PoolBound));
        all->answer_costs = resized(all->answer_costs, (size_t)(count * pools) * sizeof(double));
        for (i64 pool = 0; pool < pools; pool++)
            vector_push(&all->rooms, PyLong_AsLongLong(PyList_GetItem(rooms, (Py_ssize_t)pool)));
        for (i64 bound = 0; bound < count && !PyErr_Occurred(); bound++) {
            PyObject *costs;
            double left;
            if (!PyArg_ParseTuple(PyList_GetItem(bounds, (Py_ssize_t)bound), "dO!", &left, &PyList_Type, &costs))
                break;
            all->answer[bound] = (PoolBound){left, 0};
            for (i64 pool = 0; pool < pools; pool++)
                all->answer_costs[bound * pools + pool] = PyFloat_AsDouble(PyList_GetItem(costs, (Py_ssize_t)pool));
        }
        all->answer_count = count;
        all->rooms_until = until;
    }
    Py_DECREF(answer);
    if (PyErr_Occurred())
        core->failed = 1;
}

/* Reduce the rooms to the machines that may be bought now, and add the bounds of several pools. Python is asked only
 * when machines, rooms, prices or cool-downs have changed. */
static void within_purchases(Core *core, i64 now)
{
    struct Dealing *all = core->dealing;
    i64 pools = core->growing.count;
    all->key.count = 0;
    for (i64 pool = 0; pool < pools; pool++)
        vector_push(&all->key, all->total[pool]);
    for (i64 index = 0; index < core->pools_count; index++)
        for (i64 offer = 0; offer < core->pools[index]->live_of.count; offer++)
            vector_push(&all->key, core->pools[index]->live_of.at[offer]);
    int is_same = now < all->rooms_until && all->key.count == all->asked_key.count &&
                  !memcmp(all->key.at, all->asked_key.at, (size_t)all->key.count * sizeof(i64));
    if (!is_same) {
        all->rooms_until = -1;
        PyObject *totals = core->failed ? NULL : list_of(all->total, pools);
        if (!totals)
            return;
        read_rooms_answer(core, PyObject_CallMethod(core->site, "purchase_rooms", "NL", totals, now));
        if (core->failed)
            return;
        Vector key = all->asked_key;
        all->asked_key = all->key;
        all->key = key;
    }
    for (i64 pool = 0; pool < pools; pool++) {
        all->total[pool] = all->rooms.at[pool];
        all->now[pool] = all->now[pool] < all->total[pool] ? all->now[pool] : all->total[pool];
    }
    for (i64 bound = 0; bound < all->answer_count; bound++)
        add_bound(core, all->answer[bound].left, 0, all->answer_costs + bound * pools);
}

/* --- the dealing: a job gets all its machines in one pool, or none ------------------------------------------ */

/* How many more machines of a pool all bounds allow, at most `count`. */
static i64 bounded(const Core *core, i64 pool, i64 count, int is_now)
{
    const struct Dealing *all = core->dealing;
    for (i64 bound = 0; bound < all->bounds_count; bound++) {
        double cost = all->costs[bound * core->growing.count + pool];
        if (cost > 0 && (is_now || !all->bounds[bound].is_turn)) {
            double most = floor(all->bounds[bound].left / cost + 1e-9);
            count = most < (double)count ? (i64)most : count;
        }
    }
    return count > 0 ? count : 0;
}

static void take_of_bounds(const Core *core, i64 pool, i64 count, int is_now)
{
    const struct Dealing *all = core->dealing;
    for (i64 bound = 0; bound < all->bounds_count; bound++)
        if (is_now || !all->bounds[bound].is_turn)
            all->bounds[bound].left -= (double)count * all->costs[bound * core->growing.count + pool];
}

static struct Dealt dealt_in(Core *core, i64 pool, i64 need, i64 lack)
{
    struct Dealing *all = core->dealing;
    i64 free = need < all->free[pool] ? need : all->free[pool];
    i64 starts = bounded(core, pool, lack < all->now[pool] ? lack : all->now[pool], 1);
    all->free[pool] -= free;
    take_of_bounds(core, pool, starts, 1);
    take_of_bounds(core, pool, lack - starts, 0);
    all->total[pool] -= lack;
    all->now[pool] -= starts;
    all->now[pool] = all->now[pool] < all->total[pool] ? all->now[pool] : all->total[pool];
    return (struct Dealt){pool, free, starts, lack - starts};
}

static struct Dealt dealt_for(Core *core, i64 job, int may_start)
{
    struct Dealing *all = core->dealing;
    i64 pools = core->growing.count;
    for (i64 pool = 0; pool < pools; pool++) {
        i64 need = growing_at(core, pool)->needs.at[job];
        if (need <= all->free[pool]) {
            all->free[pool] -= need;
            return (struct Dealt){pool, need, 0, 0};
        }
    }
    for (int is_now = 1; may_start && is_now >= 0; is_now--) {
        for (i64 pool = 0; pool < pools; pool++) {
            i64 need = growing_at(core, pool)->needs.at[job], most = is_now ? all->now[pool] : all->total[pool];
            i64 lack = need - all->free[pool];
            /* A job of one node need not wait for its turn. */
            if (lack <= most && (need > 1 || is_now) && bounded(core, pool, lack, is_now) >= lack)
                return dealt_in(core, pool, need, lack);
        }
    }
    return (struct Dealt){-1, 0, 0, 0};
}

static i64 lack_of(const struct Dealt *share) { return share->starts + share->later; }

static int is_stuck(const Core *core, const Demand *demand) { return !core->running && !demand->booting; }

static void reserve_places(struct Dealing *all, i64 count)
{
    if (count <= all->jobs_room)
        return;
    all->jobs_room = 2 * count;
    size_t size = (size_t)all->jobs_room * sizeof(i64);
    all->shares = resized(all->shares, (size_t)all->jobs_room * sizeof(struct Dealt));
    all->fresh = resized(all->fresh, size);
    all->sure = resized(all->sure, size);
    all->places = resized(all->places, 2 * size);
}

static int needs_several(Core *core, const Demand *demand)
{
    for (i64 pool = 0; pool < core->growing.count; pool++)
        for (i64 place = 0; place < demand->count; place++)
            if (growing_at(core, pool)->needs.at[demand->queue[place]] > 1)
                return 1;
    return 0;
}

/* The first counted job whose machines idle or boot, but in several pools; -1 without one (counted_once.py). */
static i64 first_apart(Core *core, const Demand *demand)
{
    const struct Dealing *all = core->dealing;
    i64 pools = core->growing.count, total = 0, pools_with_free = 0;
    for (i64 pool = 0; pool < pools; pool++) {
        total += all->free[pool];
        pools_with_free += all->free[pool] > 0;
    }
    if (pools_with_free < 2)
        return -1;
    for (i64 place = 0; place < demand->count; place++) {
        i64 job = demand->queue[place];
        int is_apart = !core->covered[job] && nodes_of(core, job) <= total;
        for (i64 pool = 0; pool < pools && is_apart; pool++)
            is_apart = growing_at(core, pool)->needs.at[job] > all->free[pool];
        if (is_apart)
            return place;
    }
    return -1;
}

static void deal(Core *core, const Demand *demand, i64 now)
{
    struct Dealing *all = core->dealing;
    for (i64 index = 0; index < core->growing.count; index++) {
        const Pool *pool = growing_at(core, index);
        i64 free = pool->idle + pool->booting, start_now = room_now(pool), total = pool_room(pool);
        all->free[index] = free > 0 ? free : 0;
        all->now[index] = start_now > 0 ? start_now : 0;
        all->total[index] = total > all->now[index] ? total : all->now[index];
    }
    all->bounds_count = all->fresh_count = all->sure_count = 0;
    add_common_bounds(core);
    if (needs_several(core, demand))
        within_purchases(core, now);
    reserve_places(all, demand->count);
    int is_once = counts_once(core), by_nodes = core->policy == ON_DEMAND, stuck = is_stuck(core, demand);
    i64 apart = is_once && !by_nodes ? first_apart(core, demand) : -1;
    for (i64 place = 0; place < demand->count; place++) {
        i64 job = demand->queue[place];
        int is_counted = !(is_once && core->covered[job]), is_begun = core->begun[job];
        int is_sure = is_begun || (stuck && !place) || place == apart;
        struct Dealt share = dealt_for(core, job, by_nodes || is_counted || is_sure);
        all->shares[place] = share;
        if (by_nodes ? share.pool < 0 || lack_of(&share) : is_counted && !is_begun)
            all->fresh[all->fresh_count++] = place;
        if (!by_nodes && is_sure && share.pool >= 0)
            all->sure[all->sure_count++] = place;
    }
}

/* --- the choice --------------------------------------------------------------------------------------------- */

static int may_fit(Core *core, const Demand *demand, i64 place)
{
    return core->dealing->shares[place].pool >= 0 || nodes_of(core, demand->queue[place]) == 1;
}

static i64 useful_machines(Core *core, const Demand *demand, i64 wanted, i64 now)
{
    const struct Dealing *all = core->dealing;
    if (!wanted || core->policy == ON_DEMAND || !counts_once(core))
        return wanted;
    Work fitting = {0, 0, 0};
    i64 unfit_nodes = 0, first = -1;
    Demand others = *demand;
    for (i64 index = 0; index < all->fresh_count; index++) {
        i64 job = demand->queue[all->fresh[index]];
        if (may_fit(core, demand, all->fresh[index]))
            add_work(core, &fitting, job);
        else
            unfit_nodes += nodes_of(core, job);
    }
    if (!unfit_nodes)
        return wanted;
    /* The queue without the jobs that do not fit: only its head counts for these policies. */
    for (i64 place = 0, index = 0; place < demand->count && first < 0; place++) {
        int is_fresh = index < all->fresh_count && all->fresh[index] == place;
        index += is_fresh;
        first = is_fresh && !may_fit(core, demand, place) ? -1 : place;
    }
    others.queue = demand->queue + (first < 0 ? 0 : first);
    others.count = first >= 0;
    others.fresh = fitting;
    i64 most = grown(core, &others, now) + unfit_nodes;
    return wanted < most ? wanted : most;
}

typedef struct {
    i64 counted, without_room;
} Chosen;

static Chosen choose(Core *core, const Demand *demand, i64 wanted)
{
    struct Dealing *all = core->dealing;
    Chosen chosen = {0, 0};
    i64 left = wanted, lacking = 0;
    all->places_count = 0;
    for (i64 index = 0; index < all->sure_count; index++)
        all->places[all->places_count++] = all->sure[index];
    for (i64 index = 0, sure = 0; index < all->fresh_count && left > 0; index++) {
        i64 place = all->fresh[index];
        const struct Dealt *share = &all->shares[place];
        if (share->pool < 0) {
            i64 nodes = nodes_of(core, demand->queue[place]);
            lacking += nodes;
            chosen.without_room += nodes > 1 ? nodes : 0;
            continue;
        }
        while (sure < all->sure_count && all->sure[sure] < place)
            sure++;
        if (sure == all->sure_count || all->sure[sure] != place)
            all->places[all->places_count++] = place;
        left -= lack_of(share);
        chosen.counted += share->starts;
    }
    for (i64 pool = 0; pool < core->growing.count; pool++)
        all->starts[pool] = all->least[pool] = 0;
    for (i64 index = 0; index < all->places_count; index++) {
        const struct Dealt *share = &all->shares[all->places[index]];
        i64 least = share->later ? 1 : share->starts;
        all->starts[share->pool] += share->starts;
        if (share->starts && (!all->least[share->pool] || least < all->least[share->pool]))
            all->least[share->pool] = least;
    }
    left -= lacking;
    for (i64 pool = 0; pool < core->growing.count && left > 0; pool++) {
        i64 count = bounded(core, pool, left < all->now[pool] ? left : all->now[pool], 1);
        all->starts[pool] += count;
        all->least[pool] = count ? 1 : all->least[pool];
        left -= count;
        chosen.counted += count;
        all->now[pool] -= count;
        all->total[pool] -= count;
        take_of_bounds(core, pool, count, 1);
    }
    return chosen;
}

/* Stop counting the first fitting jobs with enough machines after `started` more. */
static void cover(Core *core, const Demand *demand, i64 wanted, i64 started)
{
    const struct Dealing *all = core->dealing;
    Work first_jobs = {0, 0, 0};
    for (i64 index = 0; index < all->fresh_count; index++) {
        i64 place = all->fresh[index], job = demand->queue[place];
        if (!may_fit(core, demand, place))
            continue;
        add_work(core, &first_jobs, job);
        if (started < wanted && machines_for(core, first_jobs) > demand->spare + started)
            return;
        core->covered[job] = 1;
    }
}

static void cover_by_nodes(Core *core, const Demand *demand)
{
    const struct Dealt *shares = core->dealing->shares;
    for (i64 place = 0; place < demand->count; place++)
        core->covered[demand->queue[place]] = shares[place].pool >= 0 && !shares[place].later;
}

/* Note whose machines start in turns. A job of these that has no more room counts again. */
static void note_turns(Core *core, const Demand *demand)
{
    const struct Dealing *all = core->dealing;
    for (i64 place = 0; place < demand->count; place++) {
        i64 job = demand->queue[place];
        if (core->begun[job] && all->shares[place].pool < 0)
            core->covered[job] = 0;
        core->begun_count -= core->begun[job];
        core->begun[job] = 0;
    }
    for (i64 index = 0; index < all->places_count; index++) {
        i64 place = all->places[index];
        if (all->shares[place].later) {
            core->begun[demand->queue[place]] = 1;
            core->begun_count++;
        }
    }
}

static int all_covered(const Core *core, const Demand *demand)
{
    for (i64 place = 0; place < demand->count; place++)
        if (!core->covered[demand->queue[place]])
            return 0;
    return 1;
}

/* Fill how many machines each growing pool starts (Grower.wanted). 0 if none starts. */
static int want(Core *core, i64 now)
{
    struct Dealing *all = core->dealing;
    i64 count = core->waiting_count, machines = 0, total = 0;
    int has_room = 0, by_nodes = core->policy == ON_DEMAND, is_once = counts_once(core);
    for (i64 index = 0; index < core->growing.count && !has_room; index++)
        has_room = room_now(growing_at(core, index)) != 0;
    if (!has_room)
        return 0;
    count = core->depth > 0 && core->depth < count ? core->depth : count;
    Demand demand = demand_of(core, count);
    int asks_first = !is_once || (!by_nodes && all_covered(core, &demand));
    if (asks_first) {
        machines = grown(core, &demand, now);
        if (!machines && !core->begun_count && !is_stuck(core, &demand))
            return 0;
    }
    deal(core, &demand, now);
    if (core->failed)
        return 0;
    if (is_once && !by_nodes) { /* without the jobs whose machines start in turns */
        demand.fresh = (Work){0, 0, 0};
        for (i64 index = 0; index < all->fresh_count; index++)
            add_work(core, &demand.fresh, demand.queue[all->fresh[index]]);
    }
    for (i64 index = 0; by_nodes && index < all->fresh_count; index++)
        machines += lack_of(&all->shares[all->fresh[index]]);
    if (!by_nodes && !asks_first)
        machines = grown(core, &demand, now);
    Chosen chosen = choose(core, &demand, useful_machines(core, &demand, machines, now));
    if (by_nodes) {
        cover_by_nodes(core, &demand);
    } else {
        if (is_once)
            cover(core, &demand, machines - chosen.without_room, chosen.counted);
        note_turns(core, &demand);
    }
    for (i64 pool = 0; pool < core->growing.count; pool++)
        total += all->starts[pool];
    return total > 0;
}

/* Start the machines that the policy wants, then schedule again: the first job's reservation may use them. */
static void grow_unasked(Core *core, i64 now)
{
    if (!want(core, now))
        return;
    for (i64 index = 0; index < core->growing.count && !core->failed; index++)
        if (core->dealing->starts[index])
            boot_ahead(core, growing_at(core, index), core->dealing->starts[index], now,
                       core->dealing->least[index]);
    if (core->guarded)
        ASK(core, "watch_started", "L", now);
    if (core->waiting_count > 1 && !core->failed) {
        schedule(core, now);
        look_again(core, now);
    }
}

/* Flag surplus machines (Grower.flag): idle ones end now, busy ones when their job ends. */
static void flag_unasked(Core *core, i64 now)
{
    Demand demand = demand_of(core, core->waiting_count);
    i64 count = demand.count ? 0 : demand.idle;
    if (core->policy == STEADY_STREAM) {
        i64 kept = demand.count ? nodes_of(core, demand.queue[0]) : 1;
        count = demand.idle + demand.busy - kept;
        count = (double)demand.all.seconds >= core->least_work || count < 0 ? 0 : count;
    }
    for (i64 index = core->growing.count - 1; index >= 0; index--) {
        Pool *pool = growing_at(core, index);
        count -= release_idle(pool, count < pool->idle ? count : pool->idle, now);
        i64 busy = pool->busy - pool->promised - pool->draining, drained = count < busy ? count : busy;
        drained = drained > 0 ? drained : 0;
        pool->draining += drained;
        count -= drained;
    }
}

#endif
