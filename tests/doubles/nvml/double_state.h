/* The double's state file ("key=value" lines, read anew at each call) and its counters. Calls come
 * from several threads at once: each has a copy of the file of its own. */

#ifndef DOUBLE_STATE_H
#define DOUBLE_STATE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOT_SUPPORTED = 3, VALUE = 256 };

/* ---- the state file ---- */

static pthread_key_t copy;

__attribute__((constructor)) static void make_copies(void) { pthread_key_create(&copy, free); }

/* Read the file, once for each call of the library. It is replaced and never written in place. */
static void refresh(void) {
    const char *path = getenv("NVML_DOUBLE_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    struct stat about;
    size_t size = file && !fstat(fileno(file), &about) ? (size_t)about.st_size : 0;
    char *all = malloc(size + 2);
    all[0] = '\n';
    all[1 + (file ? fread(all + 1, 1, size, file) : 0)] = 0;
    if (file) fclose(file);
    free(pthread_getspecific(copy));
    pthread_setspecific(copy, all);
}

/* The value of a key, up to the end of its line, or NULL. */
static const char *find(const char *key) {
    char wanted[VALUE + 3];
    const char *all = pthread_getspecific(copy);
    int length = snprintf(wanted, sizeof wanted, "\n%s=", key);
    const char *at = all ? strstr(all, wanted) : NULL;
    return at ? at + length : NULL;
}

static int text(char *out, const char *format, ...) {
    char key[VALUE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    const char *value = find(key);
    if (value) snprintf(out, VALUE, "%.*s", (int)strcspn(value, "\n"), value);
    return value != NULL;
}

static unsigned long long number_or(const char *key, unsigned long long otherwise) {
    char value[VALUE];
    return text(value, "%s", key) ? strtoull(value, NULL, 0) : otherwise;
}

static int unsupported(void) { return (int)number_or("unsupported", NOT_SUPPORTED); }

/* ---- counting, and calls that hang ---- */

static struct { char name[64]; int calls; } counters[64];
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

/* Every call begins here. */
static void count(const char *name) {
    int i = 0;
    pthread_mutex_lock(&counting);
    while (i < 63 && counters[i].calls && strcmp(counters[i].name, name)) i++;
    snprintf(counters[i].name, sizeof counters[i].name, "%s", name);
    counters[i].calls++;
    pthread_mutex_unlock(&counting);
    refresh();
}

int nvmlDoubleCalls(const char *name) {
    int calls = 0;
    pthread_mutex_lock(&counting);
    for (int i = 0; i < 64; i++)
        if (counters[i].calls && !strcmp(counters[i].name, name)) calls = counters[i].calls;
    pthread_mutex_unlock(&counting);
    return calls;
}

/* Block for as many seconds as a line says, or until the line is gone. */
static void hang(const char *name, const char *where) {
    char value[VALUE];
    for (int passed = 0; text(value, "hang.%s%s", name, where); passed++) {
        if (passed >= 100 * atof(value)) return;
        usleep(10000);
        refresh();
    }
}

#endif
