/* Which waiting job starts next: first come, first served, with EASY backfill over all pools. The rules are those of
 * queues/queueing.py, whose names are used here. */
#ifndef SLURM_ELASTIC_QUEUE_H
#define SLURM_ELASTIC_QUEUE_H

#include "run.h"

static void schedule(Core *core, i64 now);

static inline i64 *waiting_at(Core *core) { return core->waiting + core->waiting_first; }

/* Put a job into the queue, which is sorted by number (insort). */
static void queue_insert(Core *core, i64 job)
{
    if (core->waiting_first + core->waiting_count == core->waiting_room) {
        if (core->waiting_first > core->waiting_room / 2) {
            memmove(core->waiting, waiting_at(core), (size_t)core->waiting_count * sizeof(i64));
            core->waiting_first = 0;
        } else {
            core->waiting_room = core->waiting_room ? 2 * core->waiting_room : 64;
            core->waiting = resized(core->waiting, (size_t)core->waiting_room * sizeof(i64));
        }
    }
    i64 *queue = waiting_at(core), place = core->waiting_count;
    while (place && queue[place - 1] > job)
        place--;
    memmove(queue + place + 1, queue + place, (size_t)(core->waiting_count - place) * sizeof(i64));
    queue[place] = job;
    core->waiting_count++;
}

/* The pools that a job may use in its order: the next one after `place`, or NULL. */
static inline Pool *next_pool(Core *core, i64 job, i64 *place)
{
    if (!core->ordered)
        return *place < core->pools_count ? core->pools[(*place)++] : NULL;
    i64 number = core->orders.at[core->order_begins.at[core->order_of.at[job]] + (*place)++];
    return number < 0 ? NULL : core->pools[number];
}

static int any_free(Core *core)
{
    for (i64 index = 0; index < core->pools_count; index++) {
        Pool *pool = core->pools[index];
        if (pool->idle || (core->direct && pool_room(pool)) || pool->hosts_count)
            return 1;
    }
    return 0;
}

/* Whether a job may use `share` of a machine after the start of the first job. If so, subtract it. */
static int take_spare(Core *core, Host *host, Share share)
{
    if (core->has_seat) {
        if (core->seat.host != host)
            return 1;
        int fits = within(share, core->seat.left);
        if (fits)
            core->seat.left = minus(core->seat.left, share);
        return fits;
    }
    int is_counted_on = expected_at(host_expected(host)) <= core->shadow;
    if (is_counted_on && !core->extra)
        return 0;
    core->extra -= is_counted_on;
    return 1;
}

static Host *beside(Core *core, i64 job, Pool *pool, i64 now)
{
    Share share = share_of(core, pool, job);
    i64 limit = core->limit.at[job], user = user_of(core, pool, job);
    if (!any_host_has(pool, share.cores))
        return NULL;
    for (i64 index = 0; index < pool->hosts_count; index++) {
        Host *host = pool->hosts[index];
        if (host->user != user || !within(share, host->left))
            continue;
        i64 end = (now > host->ready ? now : host->ready) + limit;
        if (pool != core->reserved || end <= core->shadow || take_spare(core, host, share))
            return host;
    }
    return NULL;
}

/* Whether the machines that a job lacks may be launched. */
static int may_boot(Core *core, Pool *pool, i64 missing, i64 now)
{
    if (missing > pool_room(pool))
        return 0;
    return core->free_of_bounds || ASK(core, "may_launch", "LLL", missing, now, pool->is_public) > 0;
}

/* Start the job in the first pool that can take it without delaying the reservation. */
static int place(Core *core, i64 job, i64 now)
{
    Pool *pool;
    for (i64 at = 0; !core->failed && (pool = next_pool(core, job, &at));) {
        i64 need = pool->needs.at[job];
        if (pool->sharing && need == 1) {
            Host *host = beside(core, job, pool, now);
            if (host && start(core, job, pool, 1, now, host))
                return 1;
        }
        i64 lacking = core->reuse ? need - pool->idle : need;
        if (lacking > 0 && !(core->direct && may_boot(core, pool, lacking, now)))
            continue;
        if (pool == core->reserved) {
            i64 delay = lacking > 0 ? boot_delay(core, pool, lacking, now) : 0;
            if (now + delay + core->limit.at[job] > core->shadow) {
                if (need > core->extra)
                    continue;
                if (start(core, job, pool, need, now, NULL)) {
                    core->extra -= need;
                    return 1;
                }
                continue;
            }
        }
        if (start(core, job, pool, need, now, NULL))
            return 1;
    }
    return 0;
}

/* The earliest room on a machine in use, not later than `before`. 0 if there is none. */
static int find_seat(Core *core, i64 job, Pool *pool, i64 now, i64 before, Seat *found)
{
    Share share = share_of(core, pool, job);
    i64 user = user_of(core, pool, job);
    int is_found = 0;
    if (is_whole(pool, share))
        return 0;
    for (i64 index = 0; index < pool->hosts_count; index++) {
        Host *host = pool->hosts[index];
        if (host->user != user || expected_at(host->ends.at[0]) > before)
            continue;
        Share left = host->left;
        i64 when = NEVER;
        for (i64 place = 0; place < host->ends.count; place++) {
            i64 end_at = expected_at(host->ends.at[place]);
            end_at = end_at > now ? end_at : now;
            if (end_at > when)
                break;
            left = plus(left, share_of(core, pool, expected_serial(host->ends.at[place])));
            if (within(share, left))
                when = end_at;
        }
        if (when < before || (!is_found && when == before)) {
            *found = (Seat){host, when, minus(left, share)};
            before = when;
            is_found = 1;
        }
    }
    return is_found;
}

static void track(Core *core, Pool *pool)
{
    pool->tracks = 1;
    for (i64 at = core->runs_first; at >= 0; at = core->runs[at].after)
        if (core->runs[at].pool == pool->number && !core->runs[at].host)
            keys_insert(&pool->expected, core->runs[at].expected);
    for (i64 index = 0; index < pool->hosts_count; index++)
        keys_insert(&pool->expected, host_expected(pool->hosts[index]));
    for (i64 batch = 0; batch < pool->coming.count; batch++)
        if (pool->coming.at[batch])
            keys_insert(&pool->expected, pool->coming.at[batch]);
}

static i64 earliest(Core *core, Pool *pool, i64 need, i64 now, i64 *extra)
{
    i64 unstarted = core->direct ? pool_room(pool) : 0;
    return expected_shadow(pool, need, pool->idle + unstarted, now, extra);
}

/* Reserve in the pool in which the job should fit earliest. */
static void reserve(Core *core, i64 job, i64 now)
{
    Pool *pool;
    for (i64 at = 0; (pool = next_pool(core, job, &at));) {
        i64 need = pool->needs.at[job], extra;
        if (need > pool->machines)
            continue;
        if (!pool->tracks)
            track(core, pool);
        i64 shadow = earliest(core, pool, need, now, &extra);
        Seat seat;
        int has_seat = pool->sharing && need == 1 && find_seat(core, job, pool, now, shadow, &seat);
        if (has_seat) {
            shadow = seat.when;
            extra = pool->max_machines;
        }
        if (shadow < core->shadow) {
            core->shadow = shadow;
            core->extra = extra;
            core->reserved = pool;
            core->has_seat = has_seat;
            if (has_seat)
                core->seat = seat;
        }
    }
    core->head = core->reserved ? core->shadow : -NEVER;
}

/* The most machines that a job may need to be worth a try: more do not idle in any pool, and a job of several machines
 * shares none. Machines that start for a job have no such bound. */
static i64 worth_a_try(Core *core)
{
    i64 most = 0;
    if (core->direct || !core->reuse)
        return NEVER;
    for (i64 index = 0; index < core->pools_count; index++) {
        const Pool *pool = core->pools[index];
        most = pool->idle > most ? pool->idle : most;
        most = pool->hosts_count && !most ? 1 : most;
    }
    return most;
}

/* Start the jobs that do not delay the first job. */
static void backfill(Core *core, i64 now)
{
    i64 end = core->waiting_count, kept = 1, position = 1;
    i64 max_waiting = core->depth > 0 ? core->depth : end, most = worth_a_try(core);
    for (; position < core->waiting_count; position++) {
        if (kept >= max_waiting) {
            end = position;
            break;
        }
        i64 job = waiting_at(core)[position];
        if (core->least[job] > most || !place(core, job, now)) {
            waiting_at(core)[kept++] = job;
            continue;
        }
        most = worth_a_try(core);
        if (!any_free(core)) {
            end = position + 1;
            break;
        }
    }
    /* The jobs that still wait move to the others, so that a long queue is not moved as a whole. */
    i64 *queue = waiting_at(core);
    memmove(queue + end - kept, queue, (size_t)kept * sizeof(i64));
    core->waiting_first += end - kept;
    core->waiting_count -= end - kept;
}

static void schedule(Core *core, i64 now)
{
    do {
        core->shadow = NEVER;
        core->head = -NEVER;
        core->reserved = NULL;
        core->has_seat = 0;
        i64 started = 0;
        while (started < core->waiting_count && place(core, waiting_at(core)[started], now))
            started++;
        core->waiting_first += started;
        core->waiting_count -= started;
        core->stale = 0;
        if (!core->waiting_count || core->failed)
            return;
        reserve(core, waiting_at(core)[0], now);
        if (core->waiting_count > 1 && any_free(core))
            backfill(core, now);
        else
            return;
        /* A purchase failed, and the reservation may have counted on it. */
    } while (core->stale && !core->failed);
}

static void arrive(Core *core, i64 job, i64 now)
{
    if (core->full) {
        queue_insert(core, job);
    } else if (core->depth > 0 && core->waiting_count >= core->depth) {
        queue_insert(core, job);
        /* A returning job keeps its old place, which may be within the depth. */
        core->full = waiting_at(core)[core->depth - 1] >= job;
    } else if (!core->waiting_count) {
        if (!place(core, job, now)) {
            queue_insert(core, job);
            core->full = 1;
        }
    } else if (!place(core, job, now)) {
        queue_insert(core, job);
    }
}

static i64 next_ready(Core *core, i64 now)
{
    while (core->readies.count && (i64)core->readies.at[0] <= now)
        heap_pop(&core->readies);
    return core->readies.count ? (i64)core->readies.at[0] : NEVER;
}

#endif
