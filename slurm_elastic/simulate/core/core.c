/* The compiled part of the simulator. See docs/design/27-a-compiled-core-asks-python.md. */
#include "allot.h"
#include "books.h"
#include "easy.h"
#include "engine.h"

static PyMethodDef methods[] = {
    {"allot", allot, METH_VARARGS, "Return the share of each job, as allotting.allot does."},
    {"easy_starts", easy_starts, METH_VARARGS, "Fill the starts of jobs on a fixed number of nodes."},
    {"leased", leased, METH_VARARGS, "Return the machine-seconds of leases."},
    {"longest_queue", longest_queue, METH_VARARGS, "Return the most waiting jobs at an arrival."},
    {"machines_needed", machines_needed, METH_VARARGS, "Fill how many machines each job needs."},
    {"overfull", overfull, METH_VARARGS, "Return where more machines are used than exist."},
    {"peak", peak, METH_O, "Return the most machines at a time."},
    {"replayed", replayed, METH_VARARGS, "Fill the ends of jobs."},
    {"settle", settle, METH_VARARGS, "Return the bill for leases at constant prices."},
    {"slowdown", slowdown, METH_VARARGS, "Return the mean slowdown."},
    {"waits", waits, METH_VARARGS, "Sort the waits of the jobs that ended."},
    {"work", work, METH_VARARGS, "Return the machine-seconds of the jobs that ended."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_core", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

/* Add an object to the module, and forget it. 0 if that failed. */
static int added(PyObject *module, const char *name, PyObject *object)
{
    int is_added = object && PyModule_AddObjectRef(module, name, object) == 0;
    Py_XDECREF(object);
    return is_added;
}

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    seen_type = (PyTypeObject *)PyType_FromSpec(&seen_spec);
    if (!seen_type || !added(module, "SOURCES", PyLong_FromUnsignedLong(SOURCES)) ||
        !added(module, "Pool", PyType_FromSpec(&pool_spec)) ||
        !added(module, "Decision", PyType_FromSpec(&decision_spec)) ||
        !added(module, "Core", PyType_FromSpec(&core_spec)))
        Py_CLEAR(module);
    return module;
}
