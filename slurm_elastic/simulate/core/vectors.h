/* Growing arrays, heaps and maps. Numbers are 64 bits; sums of machine-seconds may wrap in between. */
#ifndef SLURM_ELASTIC_VECTORS_H
#define SLURM_ELASTIC_VECTORS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
#include <string.h>

typedef long long i64;
typedef __int128 i128;

#define NEVER (1LL << 62)

static void *resized(void *memory, size_t size)
{
    void *larger = PyMem_Realloc(memory, size ? size : 1);
    if (!larger)
        Py_FatalError("slurm-elastic: out of memory in a simulation");
    return larger;
}

/* Python's remainder, which is never negative. */
static inline i64 modulo(i64 value, i64 by)
{
    i64 rest = value % by;
    return rest < 0 ? rest + by : rest;
}

typedef struct {
    i64 *at;
    i64 count, room;
} Vector;

static inline void vector_push(Vector *vector, i64 value)
{
    if (vector->count == vector->room) {
        vector->room = vector->room ? 2 * vector->room : 16;
        vector->at = resized(vector->at, (size_t)vector->room * sizeof(i64));
    }
    vector->at[vector->count++] = value;
}

static i64 vector_find(const Vector *vector, i64 value)
{
    for (i64 index = 0; index < vector->count; index++)
        if (vector->at[index] == value)
            return index;
    return -1;
}

/* Sorted or heaped keys of 128 bits. */
typedef struct {
    i128 *at;
    i64 count, room;
} Keys;

static void keys_reserve(Keys *keys)
{
    if (keys->count < keys->room)
        return;
    keys->room = keys->room ? 2 * keys->room : 16;
    keys->at = resized(keys->at, (size_t)keys->room * sizeof(i128));
}

/* The first index whose key is not less (bisect_left). */
static i64 keys_place(const Keys *keys, i128 key)
{
    i64 low = 0, high = keys->count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (keys->at[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void keys_insert(Keys *keys, i128 key)
{
    keys_reserve(keys);
    i64 place = keys_place(keys, key);
    memmove(keys->at + place + 1, keys->at + place, (size_t)(keys->count - place) * sizeof(i128));
    keys->at[place] = key;
    keys->count++;
}

static void keys_delete(Keys *keys, i128 key)
{
    i64 place = keys_place(keys, key);
    keys->count--;
    memmove(keys->at + place, keys->at + place + 1, (size_t)(keys->count - place) * sizeof(i128));
}

static void heap_push(Keys *heap, i128 key)
{
    keys_reserve(heap);
    i64 place = heap->count++;
    while (place) {
        i64 parent = (place - 1) / 2;
        if (heap->at[parent] <= key)
            break;
        heap->at[place] = heap->at[parent];
        place = parent;
    }
    heap->at[place] = key;
}

static i128 heap_pop(Keys *heap)
{
    i128 top = heap->at[0], last = heap->at[--heap->count];
    i64 place = 0;
    for (;;) {
        i64 child = 2 * place + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && heap->at[child + 1] < heap->at[child])
            child++;
        if (heap->at[child] >= last)
            break;
        heap->at[place] = heap->at[child];
        place = child;
    }
    heap->at[place] = last;
    return top;
}

/* A map from a second to a number. Its size is a power of two, at most half of it is used. */
typedef struct {
    i64 *keys, *values;
    i64 count, size;
} Map;

#define NO_KEY (-NEVER)

static inline i64 map_slot(const Map *map, i64 key)
{
    i64 mask = map->size - 1;
    i64 slot = (i64)(((unsigned long long)key * 0x9E3779B97F4A7C15ULL) >> 20) & mask;
    while (map->keys[slot] != NO_KEY && map->keys[slot] != key)
        slot = (slot + 1) & mask;
    return slot;
}

static void map_put(Map *map, i64 key, i64 value)
{
    if (2 * (map->count + 1) > map->size) {
        Map larger = {0};
        larger.size = map->size ? 2 * map->size : 16;
        larger.keys = resized(NULL, (size_t)larger.size * sizeof(i64));
        larger.values = resized(NULL, (size_t)larger.size * sizeof(i64));
        for (i64 slot = 0; slot < larger.size; slot++)
            larger.keys[slot] = NO_KEY;
        for (i64 slot = 0; slot < map->size; slot++)
            if (map->keys[slot] != NO_KEY)
                map_put(&larger, map->keys[slot], map->values[slot]);
        PyMem_Free(map->keys);
        PyMem_Free(map->values);
        *map = larger;
    }
    i64 slot = map_slot(map, key);
    map->count += map->keys[slot] == NO_KEY;
    map->keys[slot] = key;
    map->values[slot] = value;
}

/* The value of a key, or -1. */
static i64 map_get(const Map *map, i64 key)
{
    if (!map->size)
        return -1;
    i64 slot = map_slot(map, key);
    return map->keys[slot] == key ? map->values[slot] : -1;
}

static void map_delete(Map *map, i64 key)
{
    i64 mask = map->size - 1, hole = map_slot(map, key);
    if (map->keys[hole] == NO_KEY)
        return;
    map->keys[hole] = NO_KEY;
    map->count--;
    /* Put the keys after the hole in again, because a search ends at a hole. */
    for (i64 slot = (hole + 1) & mask; map->keys[slot] != NO_KEY; slot = (slot + 1) & mask) {
        i64 moved = map->keys[slot], value = map->values[slot];
        map->keys[slot] = NO_KEY;
        map->count--;
        map_put(map, moved, value);
    }
}

static i64 *filled(i64 count, i64 value)
{
    i64 *column = resized(NULL, (size_t)count * sizeof(i64));
    for (i64 index = 0; index < count; index++)
        column[index] = value;
    return column;
}

/* A column of integers (array('q')) that Python made and keeps. */
typedef struct {
    Py_buffer view;
    i64 *at;
    i64 count;
} Column;

static int column_open(Column *column, PyObject *array, int flags)
{
    if (PyObject_GetBuffer(array, &column->view, flags) < 0)
        return -1;
    column->at = column->view.buf;
    column->count = (i64)(column->view.len / (Py_ssize_t)sizeof(i64));
    return 0;
}

static void column_close(Column *column)
{
    if (column->at)
        PyBuffer_Release(&column->view);
    column->at = NULL;
}

#endif
