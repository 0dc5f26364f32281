/* A stand-in for NVIDIA's management library, so that the real binding can be tested without a
 * GPU. It plays the part of NVML that gpuspawner calls, with the traps that the real one has:
 * memory versions, holes among MIG devices, handles that go stale, GPUs that are lost, drivers
 * that lack a symbol (-DOLD_DRIVER), lists of processes that come in two steps, samples of who was
 * busy with rubbish among them, samples of GPU instances that must be freed (GPM), calls that hang,
 * and any error code from any call.
 *
 * Driven by the file that NVML_DOUBLE_STATE names, read anew at each call: lines "key=value".
 *
 *   driver=580.95.05                 init=18 (the code of nvmlInitWithFlags)
 *   unsupported=999                  the code for what a GPU lacks (default 3; WSL gives 999)
 *   gpu.0.uuid=GPU-...               also .name .total .reserved .used (bytes) .util .temp
 *                                    .power .limit (mW) .mig .slots .lookup .lost (a code)
 *                                    .remapped=0,0,1,0 .field.230=1
 *   gpu.0.mig.2.uuid=MIG-...         also .name .total .reserved .used .memory_mb, .gi .ci (slices)
 *                                    and .gi_id, the id of the GPU instance that it is in
 *   gpu.0.processes=4711:1048576,4712:-   PIDs and their bytes ("-": not available), also .graphics
 *                                    and .mps, and the same of gpu.0.mig.2
 *   gpu.0.samples=4711:1800000000000000:55   PIDs, microseconds and percent
 *   gpu.0.ring=1                     all samples come, not only those newer than asked for
 *   gpu.0.probe=0                    the code that answers the question for the number of samples
 *   gpu.0.grows.processes=1          so often this list, or "samples", is longer than it was when
 *                                    its length was asked for
 *   gpu.0.gpm=1                      whether the chip has GPM (Hopper and later)
 *   gpu.0.gi.3.work=25/100           how long GPU instance 3 has worked, of how long, in any unit:
 *                                    two samples give the share between them, equal ones NaN
 *   gpu.0.gi.3.code=3                the code of the metric, while the call itself succeeds
 *   hang.nvmlDeviceGetName.0=30      this call blocks for so many seconds, for one GPU or instance
 *   hang.nvmlShutdown=30             or for the host; it goes on at once when the line goes
 *   fail.nvmlDeviceGetName=4         this call fails everywhere, or for one GPU or instance:
 *   fail.nvmlDeviceGetName.0=4       fail.nvmlDeviceGetName.0.mig.2=4
 *   fail.nvmlGpmMetricsGet.0.gi.3=4  or for a GPU instance, as nvmlGpmMigSampleGet; hangs, too
 *
 * What has no line is "unsupported". Calls are counted by nvmlDoubleCalls(name), and samples by
 * nvmlDoubleSamples.
 * Declarations are our own, from the layouts that the binding uses. */

#include "double_state.h"

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       VERSION_MISMATCH = 25 };
enum { MAX_GPUS = 16, MAX_SLOTS = 16 };
typedef void *Handle;

static int sessions, session_number, grown;
static void forget_samples(void);

/* A new test starts as a new process would. */
void nvmlDoubleReset(void) {
    memset(counters, 0, sizeof counters);
    sessions = grown = 0;
    forget_samples();
}

/* ---- handles: session, GPU, MIG slot + 1, and a mark so that none is NULL ---- */

static Handle handle(int gpu, int slot) {
    return (Handle)(size_t)(0x40000000u | (unsigned)(session_number & 0xfff) << 16
                            | (unsigned)gpu << 8 | (unsigned)(slot + 1));
}
static int gpu_of(Handle h) { return (int)((size_t)h >> 8 & 0xff); }
static int slot_of(Handle h) { return (int)((size_t)h & 0xff) - 1; }

static const char *scope(char *out, Handle h) {
    if (slot_of(h) < 0) snprintf(out, VALUE, "%d", gpu_of(h));
    else snprintf(out, VALUE, "%d.mig.%d", gpu_of(h), slot_of(h));
    return out;
}

/* What every call on a handle can fail with. A destroyed instance's handle is invalid, until the
 * slot holds another instance: then the old handle means the new one, as with the real library. */
static int enter(const char *name, Handle h) {
    char at[VALUE], value[VALUE];
    count(name);
    snprintf(value, sizeof value, ".%s", scope(at, h));
    hang(name, value);
    if (!sessions) return UNINITIALIZED;
    if (text(value, "fail.%s", name) || text(value, "fail.%s.%s", name, scope(at, h)))
        return atoi(value);
    if (((size_t)h >> 16 & 0xfff) != (size_t)(session_number & 0xfff)) return INVALID_ARGUMENT;
    if (text(value, "gpu.%d.lost", gpu_of(h))) return atoi(value);
    if (slot_of(h) >= 0 && !text(value, "gpu.%s.uuid", scope(at, h))) return INVALID_ARGUMENT;
    return OK;
}

static int enter_host(const char *name, int with_session) {
    char value[VALUE];
    count(name);
    hang(name, "");
    if (with_session && !sessions) return UNINITIALIZED;
    return text(value, "fail.%s", name) ? atoi(value) : OK;
}

#define ENTER(h) do { int code = enter(__func__, h); if (code) return code; } while (0)

static int number_at(Handle h, const char *key, unsigned long long *out) {
    char at[VALUE], value[VALUE];
    if (!text(value, "gpu.%s.%s", scope(at, h), key)) return unsupported();
    *out = strtoull(value, NULL, 0);
    return OK;
}

static int uint_at(Handle h, const char *key, unsigned *out) {
    unsigned long long wide = 0;
    int code = number_at(h, key, &wide);
    if (!code) *out = (unsigned)wide;
    return code;
}

static int copy_at(Handle h, const char *key, char *out, unsigned size) {
    char at[VALUE], value[VALUE];
    if (!text(value, "gpu.%s.%s", scope(at, h), key)) return unsupported();
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

static int mig_on(Handle h) {
    unsigned on = 0;
    return slot_of(h) < 0 && !uint_at(h, "mig", &on) && on;
}

/* ---- the host ---- */

int nvmlInitWithFlags(unsigned flags) {
    int code = enter_host(__func__, 0);
    (void)flags;
    if (!code) code = (int)number_or("init", OK);
    if (!code && !sessions++) session_number++;
    return code;
}

int nvmlShutdown(void) {
    int code = enter_host(__func__, 1);
    if (!code) sessions--;
    return code;
}

const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "an error"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    char value[VALUE];
    int code = enter_host(__func__, 1);
    if (code) return code;
    if (!text(value, "driver")) return unsupported();
    snprintf(out, size, "%s", value);
    return OK;
}

/* Counts GPUs that may not be opened, too. */
int nvmlDeviceGetCount_v2(unsigned *out) {
    char value[VALUE];
    int code = enter_host(__func__, 1);
    if (code) return code;
    for (*out = 0; *out < MAX_GPUS && text(value, "gpu.%u.uuid", *out); ) ++*out;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *out) {
    char value[VALUE];
    int code = enter_host(__func__, 1);
    if (code) return code;
    snprintf(value, sizeof value, ".%u", index);
    hang(__func__, value);
    if (text(value, "fail.%s.%u", __func__, index)) return atoi(value);
    if (!text(value, "gpu.%u.uuid", index)) return INVALID_ARGUMENT;
    if (text(value, "gpu.%u.lookup", index) || text(value, "gpu.%u.lost", index))
        return atoi(value);
    *out = handle((int)index, -1);
    return OK;
}

/* ---- one device ---- */

int nvmlDeviceGetUUID(Handle h, char *out, unsigned size) {
    ENTER(h);
    return copy_at(h, "uuid", out, size);
}

int nvmlDeviceGetName(Handle h, char *out, unsigned size) {
    ENTER(h);
    return copy_at(h, "name", out, size);
}

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;

static int memory(Handle h, MemoryV2 *out) {
    int code = number_at(h, "total", &out->total);
    out->reserved = out->used = 0;
    if (!code) code = number_at(h, "used", &out->used);
    number_at(h, "reserved", &out->reserved);
    out->free = out->total - out->used - out->reserved;
    return code;
}

int nvmlDeviceGetMemoryInfo(Handle h, Memory *out) {
    MemoryV2 all;
    ENTER(h);
    int code = memory(h, &all);
    /* Version 1 counts the driver's reserve as used; "not available" stays what it is. */
    out->used = all.used == ~0ull ? all.used : all.used + all.reserved;
    out->total = all.total;
    out->free = all.free;
    return code;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(Handle h, MemoryV2 *out) {
    ENTER(h);
    if (out->version != (sizeof(MemoryV2) | 2u << 24)) return VERSION_MISMATCH;
    return memory(h, out);
}

typedef struct { unsigned version; int sensor; int temperature; } Temperature;

int nvmlDeviceGetTemperatureV(Handle h, Temperature *out) {
    unsigned value = 0;
    ENTER(h);
    if (out->version != (sizeof(Temperature) | 1u << 24)) return VERSION_MISMATCH;
    int code = slot_of(h) >= 0 ? unsupported() : uint_at(h, "temp", &value);
    out->temperature = (int)value;
    return code;
}

int nvmlDeviceGetRemappedRows(Handle h, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failure) {
    char value[VALUE];
    ENTER(h);
    if (!text(value, "gpu.%d.remapped", gpu_of(h))) return unsupported();
    return sscanf(value, "%u,%u,%u,%u", corrected, uncorrected, pending, failure) == 4
        ? OK : INVALID_ARGUMENT;
}
#endif

int nvmlDeviceGetTemperature(Handle h, int sensor, unsigned *out) {
    ENTER(h);
    (void)sensor;
    return uint_at(h, "temp", out);
}

int nvmlDeviceGetUtilizationRates(Handle h, unsigned out[2]) {
    ENTER(h);
    out[1] = 0;
    return slot_of(h) >= 0 || mig_on(h) ? unsupported() : uint_at(h, "util", out);
}

int nvmlDeviceGetPowerUsage(Handle h, unsigned *out) { ENTER(h); return uint_at(h, "power", out); }

int nvmlDeviceGetEnforcedPowerLimit(Handle h, unsigned *out) {
    ENTER(h);
    return uint_at(h, "limit", out);
}

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    int type, code;
    union { double d; unsigned ui; unsigned long long ull; } value;
} FieldValue;

/* The call succeeds although single fields do not: each has its own code. */
int nvmlDeviceGetFieldValues(Handle h, int count, FieldValue *values) {
    char key[VALUE];
    ENTER(h);
    for (int i = 0; i < count; i++) {
        char code[VALUE];
        snprintf(key, sizeof key, "field.%u", values[i].id);
        values[i].type = 1;
        values[i].value.ull = 0;
        values[i].code = text(code, "gpu.%d.%s.code", gpu_of(h), key)
            ? atoi(code) : uint_at(h, key, &values[i].value.ui);
        if (values[i].code) values[i].value.ui = 77; /* whatever was in the caller's memory */
    }
    return OK;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(Handle h, unsigned *current, unsigned *pending) {
    ENTER(h);
    int code = uint_at(h, "mig", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle h, unsigned *out) {
    ENTER(h);
    *out = 0;
    if (mig_on(h) && uint_at(h, "slots", out)) *out = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle h, unsigned index, Handle *out) {
    char value[VALUE];
    ENTER(h);
    if (text(value, "fail.%s.%d.mig.%u", __func__, gpu_of(h), index)) return atoi(value);
    if (slot_of(h) >= 0 || index >= MAX_SLOTS) return INVALID_ARGUMENT;
    if (!text(value, "gpu.%d.mig.%u.uuid", gpu_of(h), index)) return NOT_FOUND;
    *out = handle(gpu_of(h), (int)index);
    return OK;
}

typedef struct {
    unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices;
    unsigned long long memory_mb;
} Attributes;

int nvmlDeviceGetAttributes_v2(Handle h, Attributes *out) {
    ENTER(h);
    memset(out, 0, sizeof *out);
    if (slot_of(h) < 0) return INVALID_ARGUMENT;
    int code = uint_at(h, "gi", &out->gi_slices);
    if (!code) code = uint_at(h, "ci", &out->ci_slices);
    if (!code) code = number_at(h, "memory_mb", &out->memory_mb);
    out->multiprocessors = 14 * out->ci_slices;
    return code;
}

#include "double_processes.h"
#include "double_gpm.h"
