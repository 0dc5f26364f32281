/* The double's GPM: samples of GPU instances, and what they give in pairs. The rest of
 * libnvidia_ml_double.c, which has its language and includes this at its end.
 *
 * No sample's place is used twice in a test, so that a sample that was freed, or is of a session
 * that has ended, is told from those that live. */

enum { NO_SAMPLE = 0, LIVE = 1, FREED = 2, MEMORY = 20, MAX_SAMPLES = 8192 };

typedef struct {
    int state, session, gpu, number;
    unsigned gpu_instance;
    double work, time;
} GpmSample;

static GpmSample samples[MAX_SAMPLES];
static int sampled, bad_uses;
static pthread_mutex_t sampling = PTHREAD_MUTEX_INITIALIZER;

static void forget_samples(void) {
    memset(samples, 0, sizeof samples);
    sampled = bad_uses = 0;
}

/* How many samples live; how many were left when their session ended; how often one was used that
 * does not live. */
void nvmlDoubleSamples(int out[3]) {
    pthread_mutex_lock(&sampling);
    out[0] = out[1] = 0;
    for (GpmSample *one = samples; one < samples + MAX_SAMPLES; one++)
        if (one->state == LIVE) out[!(sessions && one->session == session_number)]++;
    out[2] = bad_uses;
    pthread_mutex_unlock(&sampling);
}

int nvmlDeviceGetGpuInstanceId(Handle h, unsigned *out) {
    ENTER(h);
    return slot_of(h) < 0 ? INVALID_ARGUMENT : uint_at(h, "gi_id", out);
}

#ifndef OLD_DRIVER
static int lives(const GpmSample *one) {
    size_t at = (size_t)((const char *)one - (const char *)samples);
    pthread_mutex_lock(&sampling);
    int good = at < sizeof samples && at % sizeof *one == 0 && one->state == LIVE
        && one->session == session_number;
    bad_uses += !good;
    pthread_mutex_unlock(&sampling);
    return good;
}

/* What a call on one GPU instance can do besides: hang, and fail. */
static int enter_instance(const char *name, int gpu, unsigned gpu_instance) {
    char where[VALUE], value[VALUE];
    snprintf(where, sizeof where, ".%d.gi.%u", gpu, gpu_instance);
    hang(name, where);
    return text(value, "fail.%s%.200s", name, where) ? atoi(value) : OK;
}

typedef struct { unsigned version, supported; } Support;

int nvmlGpmQueryDeviceSupport(Handle h, Support *out) {
    ENTER(h);
    if (out->version != 1) return VERSION_MISMATCH;
    return uint_at(h, "gpm", &out->supported);
}

int nvmlGpmSampleAlloc(GpmSample **out) {
    int code = enter_host(__func__, 1);
    if (code) return code;
    pthread_mutex_lock(&sampling);
    if (sampled < MAX_SAMPLES) {
        *out = &samples[sampled++];
        **out = (GpmSample){ .state = LIVE, .session = session_number, .gpu = -1 };
    } else code = MEMORY;
    pthread_mutex_unlock(&sampling);
    return code;
}

/* A use without a session is a bad one, whatever the code that it gets. */
int nvmlGpmSampleFree(GpmSample *one) {
    int code = enter_host(__func__, 1);
    if (code == UNINITIALIZED && !sessions) bad_uses++;
    if (code) return code;
    if (!lives(one)) return INVALID_ARGUMENT;
    one->state = FREED;
    return OK;
}

int nvmlGpmMigSampleGet(Handle h, unsigned gpu_instance, GpmSample *out) {
    static int number;
    char value[VALUE], at[VALUE];
    ENTER(h);
    int found = 0, code = enter_instance(__func__, gpu_of(h), gpu_instance);
    if (code) return code;
    if (slot_of(h) >= 0 || !lives(out)) return INVALID_ARGUMENT;
    for (int slot = 0; slot < MAX_SLOTS; slot++) {
        snprintf(at, sizeof at, "gpu.%d.mig.%d.gi_id", gpu_of(h), slot);
        found |= number_or(at, ~0ull) == gpu_instance;
    }
    if (!found) return NOT_FOUND;
    if (!text(value, "gpu.%d.gi.%u.work", gpu_of(h), gpu_instance)) return unsupported();
    if (sscanf(value, "%lf/%lf", &out->work, &out->time) != 2) return INVALID_ARGUMENT;
    out->gpu = gpu_of(h);
    out->gpu_instance = gpu_instance;
    pthread_mutex_lock(&sampling);
    out->number = ++number;
    pthread_mutex_unlock(&sampling);
    return OK;
}

typedef struct {
    unsigned id;
    int code;
    double value;
    const char *name, *description, *unit;
} Metric;
typedef struct {
    unsigned version, count;
    GpmSample *older, *newer;
    Metric metrics[];
} MetricsGet;

int nvmlGpmMetricsGet(MetricsGet *get) {
    char code[VALUE];
    int failed = enter_host(__func__, 1);
    if (failed) return failed;
    if (get->version != 1) return VERSION_MISMATCH;
    GpmSample *a = get->older, *b = get->newer;
    if (!lives(a) || !lives(b) || a->gpu < 0 || a->gpu != b->gpu
        || a->gpu_instance != b->gpu_instance || a->number >= b->number) return INVALID_ARGUMENT;
    failed = enter_instance(__func__, a->gpu, a->gpu_instance);
    for (unsigned i = 0; !failed && i < get->count; i++) {
        Metric *one = &get->metrics[i];
        one->code = one->id == 1 ? OK : INVALID_ARGUMENT;
        if (text(code, "gpu.%d.gi.%u.code", a->gpu, a->gpu_instance)) one->code = atoi(code);
        one->value = one->code ? 77 : 100 * (b->work - a->work) / (b->time - a->time);
    }
    return failed;
}
#endif
