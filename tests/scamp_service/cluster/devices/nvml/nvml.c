/* A stand-in for NVIDIA's libnvidia-ml.so.1: the functions that ScaMP calls through pynvml, answered from the file that
 * the environment variable NVML_STAND_IN names. The file is read again whenever it has changed, as GPUs change while a
 * process has NVML open. docs/gpus.md has its format, and "refuses" works as in scamp_service's rehearsal. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
enum { MOST_GPUS = 16, MOST_LINKS = 36, MOST_PROCESSES = 16, MOST_INSTANCES = 7, SWITCH_BUS = 255 };

typedef unsigned long long u64;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;

typedef struct {
    unsigned index, num_processes, num_links, num_instances, links[MOST_LINKS], generation, width;
    u64 mib, reserved, held;
    process_t processes[MOST_PROCESSES];
    char name[160], uuid[96], refuses[512];
    int lost, worn_out;
    u64 instance_mib[MOST_INSTANCES];
    char profiles[MOST_INSTANCES][16];
} gpu_t;

static gpu_t gpus[MOST_GPUS], instances[MOST_GPUS][MOST_INSTANCES];
static unsigned num_gpus, error, open_count;
static struct timespec read_at;
static off_t read_size = -1;

static void set(gpu_t *gpu, const char *key, char *value) {
    int is_plain = strcmp(key, "processes") && strcmp(key, "nvlinks") && strcmp(key, "mig");
    if (!strcmp(key, "name")) snprintf(gpu->name, sizeof gpu->name, "%s", value);
    if (!strcmp(key, "mib")) gpu->mib = strtoull(value, NULL, 10);
    if (!strcmp(key, "reserved_mib")) gpu->reserved = strtoull(value, NULL, 10);
    if (!strcmp(key, "refuses")) snprintf(gpu->refuses, sizeof gpu->refuses, " %s ", value);
    if (!strcmp(key, "lost")) gpu->lost = !strcmp(value, "yes");
    if (!strcmp(key, "worn_out")) gpu->worn_out = !strcmp(value, "yes");
    if (!strcmp(key, "pcie")) sscanf(value, "%ux%u", &gpu->generation, &gpu->width);
    for (char *pair = is_plain ? NULL : strtok(value, " "); pair; pair = strtok(NULL, " ")) {
        char *colon = strrchr(pair, ':');
        if (!colon) abort();
        *colon = 0;
        u64 number = strtoull(colon + 1, NULL, 10);
        if (!strcmp(key, "processes") && gpu->num_processes < MOST_PROCESSES) {
            gpu->processes[gpu->num_processes++] = (process_t){atoi(pair), number << 20, -1, -1};
            gpu->held += number;
        }
        for (u64 n = 0; !strcmp(key, "nvlinks") && n < number && gpu->num_links < MOST_LINKS; n++)
            gpu->links[gpu->num_links++] = strcmp(pair, "switch") ? atoi(pair) : SWITCH_BUS;
        if (!strcmp(key, "mig") && gpu->num_instances < MOST_INSTANCES) {
            snprintf(gpu->profiles[gpu->num_instances], 16, "%s", pair);
            gpu->instance_mib[gpu->num_instances++] = number;
        }
    }
}

/* The file as it is now; an error when there is none. */
static unsigned look(void) {
    const char *path = getenv("NVML_STAND_IN");
    struct stat now;
    if (!path || stat(path, &now)) return DRIVER_NOT_LOADED;
    if (now.st_size == read_size && !memcmp(&now.st_mtim, &read_at, sizeof read_at)) return error;
    FILE *file = fopen(path, "r");
    if (!file) return DRIVER_NOT_LOADED;
    char line[1024], key[64], value[900];
    unsigned first = 0, last = 0;
    int in_driver = 0;
    read_at = now.st_mtim, read_size = now.st_size, num_gpus = error = 0;
    while (fgets(line, sizeof line, file)) {
        int found = sscanf(line, "[gpu %u-%u]", &first, &last);
        if (found >= 1) {
            last = found == 2 ? last : first;
            if (first != num_gpus || last < first || last >= MOST_GPUS) abort();
            for (in_driver = 0; num_gpus <= last; num_gpus++) {
                gpu_t *gpu = memset(&gpus[num_gpus], 0, sizeof *gpus);
                gpu->index = num_gpus, gpu->generation = 4, gpu->width = 16;
                snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-%08x-0000", gpu->index);
            }
        } else if (line[0] == '[') {
            in_driver = 1;
        } else if (sscanf(line, "%63[a-z_] = %899[^\n]", key, value) == 2) {
            if (in_driver) error = atoi(value);
            for (unsigned n = first; !in_driver && n <= last; n++) {
                char copy[900];
                set(&gpus[n], key, strcpy(copy, value));
            }
        }
    }
    fclose(file);
    for (unsigned n = 0; n < num_gpus; n++)
        for (unsigned i = 0; i < gpus[n].num_instances; i++) {
            gpu_t *part = memset(&instances[n][i], 0, sizeof **instances);
            part->index = n, part->mib = gpus[n].instance_mib[i], part->generation = 4, part->width = 16;
            snprintf(part->name, sizeof part->name, "%.120s MIG %s", gpus[n].name, gpus[n].profiles[i]);
            snprintf(part->uuid, sizeof part->uuid, "MIG-%08x-%04x", n, i);
        }
    return error;
}

/* Whether a query of this GPU is refused. Names in the file are pynvml's, so without a version. */
static int refusal(gpu_t *gpu, const char *query) {
    char word[80];
    if (!open_count) return UNINITIALIZED;
    unsigned trouble = look();
    if (trouble) return trouble;
    snprintf(word, sizeof word, " %s ", query);
    if (gpu->lost) return GPU_IS_LOST;
    return strstr(gpu->refuses, word) || strstr(gpu->refuses, " all ") ? NOT_SUPPORTED : OK;
}

#define ASK(query) do { int refused = refusal(gpu, query); if (refused) return refused; } while (0)

static void bus_of(unsigned end, pci_t *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = end;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", end);
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    unsigned trouble = look();
    if (!trouble) open_count++;
    return trouble;
}

int nvmlShutdown(void) { return open_count ? (open_count--, OK) : UNINITIALIZED; }

const char *nvmlErrorString(int number) { return number == GPU_IS_LOST ? "GPU is lost" : "an error of the stand-in"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    unsigned trouble = open_count ? look() : UNINITIALIZED;
    *count = num_gpus;
    return trouble;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu) {
    if (!open_count) return UNINITIALIZED;
    if (index >= num_gpus) return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **gpu) {
    for (unsigned n = 0; open_count && n < num_gpus; n++)
        if (!strcmp(gpus[n].uuid, uuid)) return *gpu = &gpus[n], OK;
    return open_count ? NOT_FOUND : UNINITIALIZED;
}

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci) {
    ASK("nvmlDeviceGetPciInfo");
    bus_of(gpu->index, pci);
    return OK;
}

int nvmlDeviceGetUUID(gpu_t *gpu, char *uuid, unsigned size) {
    ASK("nvmlDeviceGetUUID");
    snprintf(uuid, size, "%s", gpu->uuid);
    return OK;
}

int nvmlDeviceGetName(gpu_t *gpu, char *name, unsigned size) {
    ASK("nvmlDeviceGetName");
    snprintf(name, size, "%s", gpu->name);
    return OK;
}

static u64 free_mib(gpu_t *gpu) {
    u64 taken = gpu->reserved + gpu->held;
    return taken < gpu->mib ? gpu->mib - taken : 0;
}

int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *memory) {
    ASK("nvmlDeviceGetMemoryInfo");
    *memory = (memory_t){gpu->mib << 20, free_mib(gpu) << 20, (gpu->mib - free_mib(gpu)) << 20};
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(gpu_t *gpu, memory_v2_t *memory) {
    ASK("nvmlDeviceGetMemoryInfo");
    if (memory->version != 0x02000028) return 25; /* as a driver that does not know this version of the structure */
    *memory = (memory_v2_t){memory->version, gpu->mib << 20, gpu->reserved << 20, free_mib(gpu) << 20, gpu->held << 20};
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned *count, process_t *processes) {
    ASK("nvmlDeviceGetComputeRunningProcesses");
    unsigned room = *count;
    *count = gpu->num_processes;
    if (room < gpu->num_processes) return INSUFFICIENT_SIZE;
    if (processes) memcpy(processes, gpu->processes, gpu->num_processes * sizeof *processes);
    return OK;
}

int nvmlDeviceGetMigMode(gpu_t *gpu, unsigned *current, unsigned *pending) {
    ASK("nvmlDeviceGetMigMode");
    *current = *pending = gpu->num_instances > 0;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(gpu_t *gpu, unsigned *count) {
    ASK("nvmlDeviceGetMaxMigDeviceCount");
    *count = MOST_INSTANCES;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(gpu_t *gpu, unsigned index, gpu_t **part) {
    ASK("nvmlDeviceGetMigDeviceHandleByIndex");
    if (index >= gpu->num_instances) return NOT_FOUND;
    *part = &instances[gpu->index][index];
    return OK;
}

int nvmlDeviceGetRemappedRows(gpu_t *gpu, unsigned *corrected, unsigned *others, unsigned *pending, unsigned *failed) {
    ASK("nvmlDeviceGetRemappedRows");
    *corrected = *pending = 0, *others = *failed = gpu->worn_out;
    return OK;
}

int nvmlDeviceGetNvLinkState(gpu_t *gpu, unsigned link, unsigned *is_up) {
    ASK("nvmlDeviceGetNvLinkState");
    if (link >= 18) return INVALID_ARGUMENT; /* no GPU has more */
    *is_up = link < gpu->num_links;
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu_t *gpu, unsigned link, pci_t *pci) {
    ASK("nvmlDeviceGetNvLinkRemotePciInfo");
    if (link >= gpu->num_links) return INVALID_ARGUMENT;
    bus_of(gpu->links[link], pci);
    return OK;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(gpu_t *gpu, unsigned link, unsigned *type) {
    ASK("nvmlDeviceGetNvLinkRemoteDeviceType");
    if (link >= gpu->num_links) return INVALID_ARGUMENT;
    *type = gpu->links[link] == SWITCH_BUS ? 2 : 0;
    return OK;
}

int nvmlDeviceGetMaxPcieLinkGeneration(gpu_t *gpu, unsigned *generation) {
    ASK("nvmlDeviceGetMaxPcieLinkGeneration");
    *generation = gpu->generation;
    return OK;
}

int nvmlDeviceGetMaxPcieLinkWidth(gpu_t *gpu, unsigned *width) {
    ASK("nvmlDeviceGetMaxPcieLinkWidth");
    *width = gpu->width;
    return OK;
}
