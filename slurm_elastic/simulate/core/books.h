/* Sums and orders over all jobs of a history, for the figures and for the checks of the books. The rules are those of
 * outcome.py, shared_machines.py and studies/standing.py. */
#ifndef SLURM_ELASTIC_BOOKS_H
#define SLURM_ELASTIC_BOOKS_H

#include "vectors.h"

#define MAX_COLUMNS 8

/* Open columns of equal length; the last of them is written. 0, and a Python exception, if that fails. */
static int columns_open(Column *columns, PyObject **given, int count, int is_last_written)
{
    memset(columns, 0, MAX_COLUMNS * sizeof *columns);
    for (int index = 0; index < count; index++) {
        int flags = is_last_written && index == count - 1 ? PyBUF_WRITABLE : PyBUF_SIMPLE;
        if (column_open(&columns[index], given[index], flags) < 0)
            return 0;
        if (columns[index].count != columns[0].count) {
            PyErr_SetString(PyExc_ValueError, "the columns have different lengths");
            return 0;
        }
    }
    return 1;
}

static void columns_close(Column *columns)
{
    for (int index = 0; index < MAX_COLUMNS; index++)
        column_close(&columns[index]);
}

static i64 parts(i64 whole, i64 size) { return whole / size + (whole % size > 0); }

/* machines_needed(procs, memory, gpus, nodes, of a machine: processors, memory and GPUs, never, needs). */
static PyObject *machines_needed(PyObject *module, PyObject *args)
{
    PyObject *given[5];
    i64 procs, memory, gpus, never;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOLLLLO", &given[0], &given[1], &given[2], &given[3], &procs, &memory, &gpus,
                          &never, &given[4]))
        return NULL;
    Column columns[MAX_COLUMNS];
    int is_open = columns_open(columns, given, 5, 1), any_nodes = 0;
    for (i64 job = 0; is_open && job < columns[0].count; job++)
        any_nodes = any_nodes || columns[3].at[job] > 1;
    for (i64 job = 0; is_open && job < columns[0].count; job++) {
        i64 need = parts(columns[0].at[job], procs), other = memory ? parts(columns[1].at[job], memory) : 0;
        need = other > need ? other : need;
        other = gpus ? parts(columns[2].at[job], gpus) : columns[2].at[job] > 0 ? never : 0;
        need = other > need ? other : need;
        need = any_nodes && columns[3].at[job] > need ? columns[3].at[job] : need;
        columns[4].at[job] = need;
    }
    columns_close(columns);
    return is_open ? Py_NewRef(Py_None) : NULL;
}

typedef struct {
    i64 when, size;
} Change;

/* Sort by time. Numbers of the same second keep their order. Digits of 11 bits, as many as the largest number has. */
static void sort_by_time(Change *rows, i64 count)
{
    Change *other = resized(NULL, (size_t)count * sizeof(Change)), *from = rows, *to = other;
    i64 least = count ? rows[0].when : 0, most = least;
    for (i64 index = 1; index < count; index++) {
        least = rows[index].when < least ? rows[index].when : least;
        most = rows[index].when > most ? rows[index].when : most;
    }
    for (int shift = 0; shift < 64 && (unsigned long long)(most - least) >> shift; shift += 11) {
        i64 places[2049] = {0};
        for (i64 index = 0; index < count; index++)
            places[(((unsigned long long)(from[index].when - least) >> shift) & 2047) + 1]++;
        for (int digit = 0; digit < 2048; digit++)
            places[digit + 1] += places[digit];
        for (i64 index = 0; index < count; index++)
            to[places[((unsigned long long)(from[index].when - least) >> shift) & 2047]++] = from[index];
        Change *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != rows)
        memcpy(rows, from, (size_t)count * sizeof(Change));
    PyMem_Free(other);
}

static void sort_numbers(i64 *numbers, i64 count)
{
    Change *rows = resized(NULL, (size_t)count * sizeof(Change));
    for (i64 index = 0; index < count; index++)
        rows[index] = (Change){numbers[index], 0};
    sort_by_time(rows, count);
    for (i64 index = 0; index < count; index++)
        numbers[index] = rows[index].when;
    PyMem_Free(rows);
}

/* peak(leases): the most machines at a time. `leases`: by pool, the columns (batch, end, machines, start by batch). */
static PyObject *peak(PyObject *module, PyObject *pools)
{
    Change *changes = NULL;
    i64 count = 0, up = 0, most = 0;
    (void)module;
    for (Py_ssize_t pool = 0; pool < PyList_Size(pools); pool++) {
        PyObject *given[4];
        Column columns[MAX_COLUMNS], starts = {0};
        if (!PyArg_ParseTuple(PyList_GetItem(pools, pool), "OOOO", &given[0], &given[1], &given[2], &given[3]))
            break;
        if (columns_open(columns, given, 3, 0) && column_open(&starts, given[3], 0) == 0) {
            changes = resized(changes, (size_t)(count + 2 * columns[0].count) * sizeof(Change));
            for (i64 row = 0; row < columns[0].count; row++) {
                i64 start = starts.at[columns[0].at[row]], end = columns[1].at[row], size = columns[2].at[row];
                if (start > end) /* reclaimed during its boot, and never paid */
                    continue;
                changes[count++] = (Change){start, size};
                changes[count++] = (Change){end, -size};
            }
        }
        columns_close(columns);
        column_close(&starts);
    }
    if (count && !PyErr_Occurred())
        sort_by_time(changes, count);
    for (i64 row = 0; row < count; row++) {
        up += changes[row].size;
        /* The changes of a second are one. */
        if ((row + 1 == count || changes[row + 1].when != changes[row].when) && up > most)
            most = up;
    }
    PyMem_Free(changes);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(most);
}

/* leased(batch, end, machines, start by batch): the machine-seconds of all leases. */
static PyObject *leased(PyObject *module, PyObject *args)
{
    PyObject *given[3], *of_batches;
    i64 total = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO", &given[0], &given[1], &given[2], &of_batches))
        return NULL;
    Column columns[MAX_COLUMNS], starts = {0};
    int is_open = columns_open(columns, given, 3, 0) && column_open(&starts, of_batches, 0) == 0;
    for (i64 row = 0; is_open && row < columns[0].count; row++) {
        i64 seconds = columns[1].at[row] - starts.at[columns[0].at[row]];
        total += seconds > 0 ? columns[2].at[row] * seconds : 0;
    }
    columns_close(columns);
    column_close(&starts);
    return is_open ? PyLong_FromLongLong(total) : NULL;
}

/* settle(batch, end, machines, reclaimed, start and offer by batch, price by offer, is on spot by offer, increment,
 * minimum, whether a reclaimed machine's last increment is free): the bill for leases at constant prices. Returns paid
 * seconds, and dollars on demand and on the spot market. `reclaimed`: bytes. The rule is paid_seconds of base/billing.py. */
static PyObject *settle(PyObject *module, PyObject *args)
{
    PyObject *given[3], *of_batches[2], *of_offers[2], *reclaimed;
    i64 increment, minimum, total = 0;
    int refund;
    double paid[2] = {0.0, 0.0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOOOOLLp", &given[0], &given[1], &given[2], &reclaimed, &of_batches[0],
                          &of_batches[1], &of_offers[0], &of_offers[1], &increment, &minimum, &refund))
        return NULL;
    Column leases[MAX_COLUMNS], batches[MAX_COLUMNS] = {{{0}}}, offers[MAX_COLUMNS] = {{{0}}};
    Py_buffer taken = {0};
    int is_open = columns_open(leases, given, 3, 0) && columns_open(batches, of_batches, 2, 0) &&
                  columns_open(offers, of_offers, 2, 0) && PyObject_GetBuffer(reclaimed, &taken, PyBUF_SIMPLE) == 0;
    for (i64 row = 0; is_open && row < leases[0].count; row++) {
        i64 batch = leases[0].at[row], count = leases[2].at[row], offer = batches[1].at[batch];
        i64 seconds = leases[1].at[row] - batches[0].at[batch];
        double price;
        if (seconds < 0) /* reclaimed during its boot, if paying begins at the end of the boot */
            continue;
        if (refund && ((const char *)taken.buf)[row])
            seconds = seconds / increment * increment;
        else if (increment <= 1)
            seconds = seconds > minimum ? seconds : minimum;
        else
            seconds = seconds ? parts(seconds, increment) * increment : increment;
        memcpy(&price, &offers[0].at[offer], sizeof price);
        total += count * seconds;
        paid[offers[1].at[offer] != 0] += (double)count * ((double)seconds / 3600.0 * price);
    }
    if (taken.obj)
        PyBuffer_Release(&taken);
    columns_close(leases);
    columns_close(batches);
    columns_close(offers);
    return is_open ? Py_BuildValue("(Ldd)", total, paid[0], paid[1]) : NULL;
}

/* waits(submit, first, ended, waits): sort the waits of the jobs that ended to the begin of a column. Returns how many
 * there are. */
static PyObject *waits(PyObject *module, PyObject *args)
{
    PyObject *given[4];
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    Column columns[MAX_COLUMNS];
    int is_open = columns_open(columns, given, 4, 1);
    i64 count = 0;
    for (i64 job = 0; is_open && job < columns[0].count; job++)
        if (columns[2].at[job] >= 0)
            columns[3].at[count++] = columns[1].at[job] - columns[0].at[job];
    sort_numbers(columns[3].at, count);
    columns_close(columns);
    return is_open ? PyLong_FromLongLong(count) : NULL;
}

/* slowdown(submit, ended, run, least): the mean slowdown of the jobs that ended; 0.0 without any. */
static PyObject *slowdown(PyObject *module, PyObject *args)
{
    PyObject *given[3];
    i64 least, done = 0;
    double total = 0.0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOL", &given[0], &given[1], &given[2], &least))
        return NULL;
    Column columns[MAX_COLUMNS];
    int is_open = columns_open(columns, given, 3, 0);
    for (i64 job = 0; is_open && job < columns[0].count; job++) {
        i64 ended = columns[1].at[job], run = columns[2].at[job];
        if (ended < 0)
            continue;
        done++;
        double factor = (double)(ended - columns[0].at[job]) / (double)(run > least ? run : least);
        total += factor > 1.0 ? factor : 1.0;
    }
    columns_close(columns);
    return is_open ? PyFloat_FromDouble(done ? total / (double)done : 0.0) : NULL;
}

/* work(run, where, ended, needs): the machine-seconds of the jobs that ended, by the needs of their pools. */
static PyObject *work(PyObject *module, PyObject *args)
{
    PyObject *given[2], *where, *needs, *sum = NULL;
    Py_buffer pools = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO!", &given[0], &where, &given[1], &PyList_Type, &needs))
        return NULL;
    Column columns[MAX_COLUMNS], *of_pools = NULL;
    Py_ssize_t count = PyList_Size(needs), opened = 0;
    if (columns_open(columns, given, 2, 0) && PyObject_GetBuffer(where, &pools, PyBUF_SIMPLE) == 0) {
        of_pools = resized(NULL, (size_t)count * sizeof(Column));
        memset(of_pools, 0, (size_t)count * sizeof(Column));
        while (opened < count && column_open(&of_pools[opened], PyList_GetItem(needs, opened), PyBUF_SIMPLE) == 0)
            opened++;
    }
    if (of_pools && opened == count) {
        i128 total = 0;
        const short *pool = pools.buf;
        for (i64 job = 0; job < columns[0].count; job++)
            if (columns[1].at[job] >= 0)
                total += (i128)of_pools[(int)pool[job]].at[job] * columns[0].at[job];
        sum = total == (i64)total ? PyLong_FromLongLong((i64)total)
                                  : PyErr_Format(PyExc_OverflowError, "the work is more than 64 bits hold");
    }
    for (Py_ssize_t index = 0; index < opened; index++)
        column_close(&of_pools[index]);
    PyMem_Free(of_pools);
    if (pools.obj)
        PyBuffer_Release(&pools);
    columns_close(columns);
    return sum;
}

/* longest_queue(submit, starts): the most waiting jobs at an arrival, the new one included. */
static PyObject *longest_queue(PyObject *module, PyObject *args)
{
    PyObject *given[2];
    i64 longest = 0, started = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &given[0], &given[1]))
        return NULL;
    Column columns[MAX_COLUMNS];
    int is_open = columns_open(columns, given, 2, 0);
    if (is_open && columns[0].count) {
        i64 count = columns[0].count, *starts = resized(NULL, (size_t)count * sizeof(i64));
        memcpy(starts, columns[1].at, (size_t)count * sizeof(i64));
        sort_numbers(starts, count);
        for (i64 arrived = 0; arrived < count; arrived++) {
            while (starts[started] < columns[0].at[arrived])
                started++;
            longest = arrived + 1 - started > longest ? arrived + 1 - started : longest;
        }
        PyMem_Free(starts);
    }
    columns_close(columns);
    return is_open ? PyLong_FromLongLong(longest) : NULL;
}

/* overfull(sizes, starts, ends, machines): (used machines, second) where more are used than exist; None if nowhere. */
static PyObject *overfull(PyObject *module, PyObject *args)
{
    PyObject *given[3], *found = NULL;
    i64 machines, used = 0, ended = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOL", &given[0], &given[1], &given[2], &machines))
        return NULL;
    Column columns[MAX_COLUMNS];
    if (columns_open(columns, given, 3, 0)) {
        i64 count = columns[0].count;
        Change *starts = resized(NULL, (size_t)(2 * count) * sizeof(Change)), *ends = starts + count;
        for (i64 job = 0; job < count; job++) {
            starts[job] = (Change){columns[1].at[job], columns[0].at[job]};
            ends[job] = (Change){columns[2].at[job], columns[0].at[job]};
        }
        sort_by_time(starts, count);
        sort_by_time(ends, count);
        for (i64 job = 0; job < count && !found; job++) {
            used += starts[job].size;
            while (ended < count && ends[ended].when <= starts[job].when && used > machines)
                used -= ends[ended++].size;
            if (used > machines)
                found = Py_BuildValue("(LL)", used, starts[job].when);
        }
        PyMem_Free(starts);
        found = found || PyErr_Occurred() ? found : Py_NewRef(Py_None);
    }
    columns_close(columns);
    return found;
}

/* replayed(sizes, starts, run, ended): fill the ends of jobs. Returns the machine-seconds used, and those of work. */
static PyObject *replayed(PyObject *module, PyObject *args)
{
    PyObject *given[4];
    i64 used = 0, useful = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    Column columns[MAX_COLUMNS];
    int is_open = columns_open(columns, given, 4, 1);
    for (i64 job = 0; is_open && job < columns[0].count; job++) {
        i64 end = columns[1].at[job] + columns[2].at[job];
        columns[3].at[job] = end;
        used += columns[0].at[job] * (end - columns[1].at[job]);
        useful += columns[0].at[job] * columns[2].at[job];
    }
    columns_close(columns);
    return is_open ? Py_BuildValue("(LL)", used, useful) : NULL;
}

#endif
