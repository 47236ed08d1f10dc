/* Allots machines to waiting jobs. The rules are those of policies/growth/allotting.py, whose names are used here, and
 * whose classes a call gets: it takes and returns the same as `allot` there, with the class of shares in front. */
#ifndef SLURM_ELASTIC_ALLOT_H
#define SLURM_ELASTIC_ALLOT_H

#include "vectors.h"
#include <math.h>

typedef struct {
    PyObject *object, *pool;
    i64 free, now, total;
} Room;

typedef struct {
    PyObject *object;
    double left;
    int is_turn;
} Bound;

typedef struct {
    Room *rooms; /* of all clouds, one after the other */
    i64 rooms_count;
    i64 *begins; /* the first room of each cloud, and the end */
    i64 *free;   /* by cloud */
    i64 clouds;
    Bound *bounds;
    double *costs, *left; /* bound x room; the rest of each bound in a plan */
    i64 bounds_count;
    i64 *counts; /* by room, of the last plan */
    PyObject *share_type;
    newfunc make;
} Allotting;

static i64 attribute(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    i64 number = value ? PyLong_AsLongLong(value) : 0;
    Py_XDECREF(value);
    return number;
}

static int set_attribute(PyObject *object, const char *name, PyObject *value)
{
    int failed = !value || PyObject_SetAttrString(object, name, value) < 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

/* How many more machines of a room all bounds allow, at most `count`. */
static i64 allowed(const Allotting *all, const double *left, i64 room, i64 count, int is_now)
{
    for (i64 bound = 0; bound < all->bounds_count; bound++) {
        double cost = all->costs[bound * all->rooms_count + room];
        if (cost > 0 && (is_now || !all->bounds[bound].is_turn)) {
            double most = floor(left[bound] / cost + 1e-9);
            count = most < (double)count ? (i64)most : count;
        }
    }
    return count;
}

static void spend(const Allotting *all, double *left, i64 room, i64 count, int is_now)
{
    for (i64 bound = 0; bound < all->bounds_count; bound++)
        if (is_now || !all->bounds[bound].is_turn)
            left[bound] -= (double)count * all->costs[bound * all->rooms_count + room];
}

static int plan(Allotting *all, i64 cloud, i64 lack, int is_now)
{
    for (i64 bound = 0; bound < all->bounds_count; bound++)
        all->left[bound] = all->bounds[bound].left;
    for (i64 room = all->begins[cloud]; room < all->begins[cloud + 1]; room++) {
        i64 most = is_now ? all->rooms[room].now : all->rooms[room].total;
        i64 count = allowed(all, all->left, room, lack < most ? lack : most, is_now);
        count = count > 0 ? count : 0;
        spend(all, all->left, room, count, is_now);
        all->counts[room] = count;
        lack -= count;
    }
    return lack <= 0;
}

static void spend_of_all(Allotting *all, i64 room, i64 count, int is_now)
{
    for (i64 bound = 0; bound < all->bounds_count; bound++)
        if (is_now || !all->bounds[bound].is_turn)
            all->bounds[bound].left -= (double)count * all->costs[bound * all->rooms_count + room];
}

/* Append (pool, count) to a list. */
static int append_pair(PyObject *list, PyObject *pool, i64 count)
{
    PyObject *pair = Py_BuildValue("(OL)", pool, count);
    int failed = !pair || PyList_Append(list, pair) < 0;
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

/* The share of a job, whose machines are taken. `is_planned`: new machines start, as in the last plan. */
static PyObject *take(Allotting *all, i64 cloud, i64 need, int is_planned)
{
    PyObject *free = PyList_New(0), *starts = PyList_New(0), *share = NULL;
    i64 later = 0;
    int failed = !free || !starts;
    for (i64 index = all->begins[cloud]; index < all->begins[cloud + 1] && !failed; index++) {
        Room *room = &all->rooms[index];
        i64 count = need < room->free ? need : room->free;
        if (count > 0) {
            failed = append_pair(free, room->pool, count) < 0;
            room->free -= count;
            all->free[cloud] -= count;
            need -= count;
        }
    }
    for (i64 index = all->begins[cloud]; is_planned && index < all->begins[cloud + 1] && !failed; index++) {
        Room *room = &all->rooms[index];
        i64 count = all->counts[index], at_once = count < room->now ? count : room->now;
        for (i64 bound = 0; bound < all->bounds_count; bound++)
            all->left[bound] = all->bounds[bound].left;
        at_once = allowed(all, all->left, index, at_once, 1);
        at_once = at_once > 0 ? at_once : 0;
        if (at_once) {
            failed = append_pair(starts, room->pool, at_once) < 0;
            spend_of_all(all, index, at_once, 1);
        }
        spend_of_all(all, index, count - at_once, 0);
        later += count - at_once;
        room->total -= count;
        room->now = room->now - at_once < room->total ? room->now - at_once : room->total;
    }
    PyObject *parts = failed ? NULL : Py_BuildValue("((NNL))", PyList_AsTuple(free), PyList_AsTuple(starts), later);
    if (parts)
        share = all->make((PyTypeObject *)all->share_type, parts, NULL);
    Py_XDECREF(parts);
    Py_XDECREF(free);
    Py_XDECREF(starts);
    return share;
}

/* The share of one job; `needs`: by cloud. A new reference to None if no cloud has room for it. */
static PyObject *share_for(Allotting *all, const i64 *needs, int may_start)
{
    for (i64 cloud = 0; cloud < all->clouds; cloud++)
        if (needs[cloud] <= all->free[cloud])
            return take(all, cloud, needs[cloud], 0);
    for (int is_now = 1; may_start && is_now >= 0; is_now--) {
        for (i64 cloud = 0; cloud < all->clouds; cloud++) {
            if (needs[cloud] == 1 && !is_now)
                continue;
            if (plan(all, cloud, needs[cloud] - all->free[cloud], is_now))
                return take(all, cloud, needs[cloud], 1);
        }
    }
    return Py_NewRef(Py_None);
}

static int read_rooms(Allotting *all, PyObject *clouds)
{
    all->clouds = (i64)PyList_Size(clouds);
    all->begins = filled(all->clouds + 1, 0);
    all->free = filled(all->clouds, 0);
    for (i64 cloud = 0; cloud < all->clouds; cloud++) {
        PyObject *rooms = PyList_GetItem(clouds, (Py_ssize_t)cloud);
        i64 count = rooms ? (i64)PyList_Size(rooms) : -1;
        if (count < 0)
            return -1;
        all->rooms = resized(all->rooms, (size_t)(all->rooms_count + count) * sizeof(Room));
        for (i64 index = 0; index < count; index++) {
            PyObject *object = PyList_GetItem(rooms, (Py_ssize_t)index);
            PyObject *pool = PyObject_GetAttrString(object, "pool");
            if (!pool)
                return -1;
            all->rooms[all->rooms_count++] = (Room){
                object, pool, attribute(object, "free"), attribute(object, "now"), attribute(object, "total")};
            all->free[cloud] += all->rooms[all->rooms_count - 1].free;
        }
        all->begins[cloud + 1] = all->rooms_count;
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int read_bounds(Allotting *all, PyObject *bounds)
{
    all->bounds_count = (i64)PyList_Size(bounds);
    all->bounds = resized(NULL, (size_t)all->bounds_count * sizeof(Bound));
    all->left = resized(NULL, (size_t)all->bounds_count * sizeof(double));
    all->costs = resized(NULL, (size_t)(all->bounds_count * all->rooms_count) * sizeof(double));
    for (i64 bound = 0; bound < all->bounds_count; bound++) {
        PyObject *object = PyList_GetItem(bounds, (Py_ssize_t)bound);
        PyObject *left = PyObject_GetAttrString(object, "left"), *costs = PyObject_GetAttrString(object, "costs");
        PyObject *turn = PyObject_GetAttrString(object, "is_turn");
        if (left && costs && turn)
            all->bounds[bound] = (Bound){object, PyFloat_AsDouble(left), PyObject_IsTrue(turn)};
        for (i64 room = 0; costs && room < all->rooms_count; room++) {
            PyObject *cost = PyDict_GetItemWithError(costs, all->rooms[room].pool);
            all->costs[bound * all->rooms_count + room] = cost ? PyFloat_AsDouble(cost) : 0.0;
        }
        Py_XDECREF(left);
        Py_XDECREF(costs);
        Py_XDECREF(turn);
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* Give the rest of the rooms and bounds back to Python. */
static int write_back(const Allotting *all)
{
    for (i64 index = 0; index < all->rooms_count; index++) {
        const Room *room = &all->rooms[index];
        if (set_attribute(room->object, "free", PyLong_FromLongLong(room->free)) < 0 ||
            set_attribute(room->object, "now", PyLong_FromLongLong(room->now)) < 0 ||
            set_attribute(room->object, "total", PyLong_FromLongLong(room->total)) < 0)
            return -1;
    }
    for (i64 bound = 0; bound < all->bounds_count; bound++)
        if (set_attribute(all->bounds[bound].object, "left", PyFloat_FromDouble(all->bounds[bound].left)) < 0)
            return -1;
    return 0;
}

static PyObject *shares_of(Allotting *all, PyObject *needs, PyObject *may_start)
{
    Py_ssize_t jobs = all->clouds ? PyList_Size(PyList_GetItem(needs, 0)) : 0;
    PyObject *shares = PyList_New(jobs);
    i64 *wishes = filled(all->clouds, 0);
    for (Py_ssize_t job = 0; shares && job < jobs; job++) {
        for (i64 cloud = 0; cloud < all->clouds; cloud++)
            wishes[cloud] = PyLong_AsLongLong(PyList_GetItem(PyList_GetItem(needs, (Py_ssize_t)cloud), job));
        int may = may_start == Py_None || PyList_GetItem(may_start, job) == Py_True;
        PyObject *share = share_for(all, wishes, may);
        if (!share || PyList_SetItem(shares, job, share) < 0)
            Py_CLEAR(shares);
    }
    PyMem_Free(wishes);
    return shares;
}

static PyObject *allot(PyObject *module, PyObject *args)
{
    PyObject *needs, *clouds, *bounds, *may_start = Py_None, *shares = NULL;
    Allotting all = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!O!O!|O", &all.share_type, &PyList_Type, &needs, &PyList_Type, &clouds,
                          &PyList_Type, &bounds, &may_start))
        return NULL;
    if (PyList_Size(needs) != PyList_Size(clouds)) {
        PyErr_SetString(PyExc_ValueError, "needs and clouds have different lengths");
        return NULL;
    }
    all.make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    if (read_rooms(&all, clouds) == 0 && read_bounds(&all, bounds) == 0) {
        all.counts = filled(all.rooms_count, 0);
        shares = shares_of(&all, needs, may_start);
        if (shares && (PyErr_Occurred() || write_back(&all) < 0))
            Py_CLEAR(shares);
    }
    for (i64 room = 0; room < all.rooms_count; room++)
        Py_DECREF(all.rooms[room].pool);
    void *made[] = {all.rooms, all.begins, all.free, all.bounds, all.costs, all.left, all.counts};
    for (size_t index = 0; index < sizeof made / sizeof *made; index++)
        PyMem_Free(made[index]);
    return shares;
}

#endif
