/* The double's lists of processes and samples: the rest of libnvidia_ml_double.c, which has their
 * language and includes this at its end. */

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, instance; } Process;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, mem, enc, dec; } Sample;

static const char *list_at(Handle h, const char *key) {
    char at[VALUE], whole[2 * VALUE];
    snprintf(whole, sizeof whole, "gpu.%s.%s", scope(at, h), key);
    return find(whole);
}

/* The next item of a list, or NULL at its end. */
static const char *after(const char *item) {
    item += strcspn(item, ",\n");
    return *item == ',' ? item + 1 : NULL;
}

static const char *first(const char *list) { return *list && *list != '\n' ? list : NULL; }

/* Whether more came up since the number was asked for: the caller's room is too small then. */
static int grows(Handle h, const char *list) {
    char key[VALUE];
    unsigned times = 0;
    snprintf(key, sizeof key, "grows.%s", list);
    return !uint_at(h, key, &times) && grown < (int)times && ++grown;
}

#ifndef OLD_DRIVER
static int processes(Handle h, const char *key, unsigned *size, Process *out) {
    unsigned room = *size;
    const char *list = list_at(h, key);
    if (!list) return unsupported();
    *size = 0;
    for (const char *item = first(list); item; item = after(item)) {
        if (out && *size < room) {
            char *end;
            Process *one = &out[*size];
            one->pid = (unsigned)strtoul(item, &end, 10);
            one->used = end[1] == '-' ? ~0ull : strtoull(end + 1, NULL, 10);
            one->gpu_instance = one->instance = slot_of(h) < 0 ? ~0u : (unsigned)slot_of(h);
        }
        ++*size;
    }
    if (!out) return *size ? INSUFFICIENT_SIZE : OK;
    return *size > room || grows(h, key) ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle h, unsigned *size, Process *out) {
    ENTER(h);
    return processes(h, "processes", size, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle h, unsigned *size, Process *out) {
    ENTER(h);
    return processes(h, "graphics", size, out);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle h, unsigned *size, Process *out) {
    ENTER(h);
    return processes(h, "mps", size, out);
}
#endif

int nvmlDeviceGetProcessUtilization(Handle h, Sample *out, unsigned *size,
                                    unsigned long long since) {
    unsigned room = *size, all = 0, probe = INSUFFICIENT_SIZE;
    ENTER(h);
    const char *list = list_at(h, "samples");
    if (slot_of(h) >= 0 || mig_on(h) || !list) return unsupported();
    uint_at(h, "ring", &all);
    uint_at(h, "probe", &probe);
    *size = 0;
    for (const char *item = first(list); item; item = after(item)) {
        char *end;
        Sample one = { .pid = (unsigned)strtoul(item, &end, 10) };
        one.time = strtoull(end + 1, &end, 10);
        one.sm = (unsigned)strtoul(end + 1, NULL, 10);
        if (!all && one.time <= since) continue;
        if (out && *size < room) out[*size] = one;
        ++*size;
    }
    if (!*size) return NOT_FOUND;
    if (!out) return (int)probe;
    return *size > room || grows(h, "samples") ? INSUFFICIENT_SIZE : OK;
}
