/* A libnvidia-ml.so.1 without GPUs: a file defines its answers, so that any state of any GPU can be simulated.
 *
 * $TRANSOM_SANDBOX_NVML is a folder with one file a host (a node's name, or "login"); where there is none, the driver
 * is not loaded. Its lines are "OWNER KEY VALUE", OWNER being "system" or a GPU's index; see nvml_stub.py, which writes
 * them. The file is read again whenever it has changed. A key that is missing is not supported. Of any call,
 *
 *     OWNER error.nvmlDeviceGetEccMode 15    says what it returns instead (system: on every GPU),
 *     OWNER hang.nvmlDeviceGetEccMode 1      that it never returns,
 *     OWNER lost 15                          that every call on this GPU returns so, once it has been opened.
 *
 * Layouts and numbers are those of nvml.h, as nvidia-ml-py has them.
 */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10 };
enum { SYSTEM = -1 };

typedef int result;
typedef struct gpu *device;
typedef unsigned long long u64;

static char *text;
static struct stat known;

static int load(void)
{
	const char *folder = getenv("TRANSOM_SANDBOX_NVML"), *node = getenv("SLURMD_NODENAME");
	char path[PATH_MAX];
	struct stat now;
	size_t got;
	FILE *file;

	if (folder == NULL || snprintf(path, sizeof path, "%s/%s", folder, node ? node : "login") >= (int)sizeof path)
		return 0;
	if (stat(path, &now) != 0)
		return 0;
	if (text != NULL && now.st_ino == known.st_ino && now.st_size == known.st_size &&
	    now.st_mtim.tv_sec == known.st_mtim.tv_sec && now.st_mtim.tv_nsec == known.st_mtim.tv_nsec)
		return 1;
	file = fopen(path, "r");
	if (file == NULL)
		return 0;
	free(text);
	text = malloc((size_t)now.st_size + 2);
	if (text == NULL)
		abort();
	text[0] = '\n';
	got = fread(text + 1, 1, (size_t)now.st_size, file);
	text[got + 1] = '\0';
	fclose(file);
	known = now;
	return 1;
}

/* The value of a line, or NULL. Valid until the file changes. */
static const char *find(int owner, const char *key)
{
	char wanted[160];
	const char *at;

	if (!load())
		return NULL;
	if (owner == SYSTEM)
		snprintf(wanted, sizeof wanted, "\nsystem %s ", key);
	else
		snprintf(wanted, sizeof wanted, "\n%d %s ", owner, key);
	at = strstr(text, wanted);
	return at ? at + strlen(wanted) : NULL;
}

static int number(int owner, const char *key, u64 *value)
{
	const char *found = find(owner, key);

	if (found == NULL)
		return 0;
	*value = strtoull(found, NULL, 0);
	return 1;
}

static int index_of(device gpu)
{
	return (int)(intptr_t)gpu - 1;
}

/* What is to happen to this call, before it does anything. */
static result enter(const char *call, int owner)
{
	char key[128];
	u64 value;

	if (!load())
		return DRIVER_NOT_LOADED;
	for (int who = SYSTEM;; who = owner) {
		snprintf(key, sizeof key, "hang.%s", call);
		while (number(who, key, &value))
			usleep(100000);
		snprintf(key, sizeof key, "error.%s", call);
		if (number(who, key, &value))
			return (result)value;
		if (who == owner)
			break;
	}
	return owner != SYSTEM && number(owner, "lost", &value) ? (result)value : SUCCESS;
}

static result tell(const char *call, int owner, const char *key, u64 *value)
{
	result bad = enter(call, owner);

	if (bad)
		return bad;
	return number(owner, key, value) ? SUCCESS : NOT_SUPPORTED;
}

static result tell_unsigned(const char *call, device gpu, const char *key, unsigned *value)
{
	u64 found;
	result bad = tell(call, index_of(gpu), key, &found);

	if (!bad)
		*value = (unsigned)found;
	return bad;
}

static result tell_text(const char *call, int owner, const char *key, char *value, unsigned length)
{
	result bad = enter(call, owner);
	const char *found;
	size_t size;

	if (bad)
		return bad;
	found = find(owner, key);
	if (found == NULL)
		return NOT_SUPPORTED;
	size = strcspn(found, "\n");
	if (size >= length)
		return INSUFFICIENT_SIZE;
	memcpy(value, found, size);
	value[size] = '\0';
	return SUCCESS;
}

const char *nvmlErrorString(result code)
{
	static char words[40];

	snprintf(words, sizeof words, "NVML error %d", code);
	return words;
}

result nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	return enter("nvmlInit", SYSTEM);
}

result nvmlShutdown(void)
{
	return SUCCESS;
}

result nvmlSystemGetDriverVersion(char *value, unsigned length)
{
	return tell_text(__func__, SYSTEM, "driver", value, length);
}

result nvmlSystemGetNVMLVersion(char *value, unsigned length)
{
	return tell_text(__func__, SYSTEM, "nvml", value, length);
}

result nvmlSystemGetCudaDriverVersion(int *value)
{
	u64 found;
	result bad = tell(__func__, SYSTEM, "cuda", &found);

	if (!bad)
		*value = (int)found;
	return bad;
}

result nvmlDeviceGetCount_v2(unsigned *value)
{
	u64 found;
	result bad = tell(__func__, SYSTEM, "count", &found);

	if (!bad)
		*value = (unsigned)found;
	return bad;
}

result nvmlDeviceGetHandleByIndex_v2(unsigned which, device *gpu)
{
	char key[] = "error.nvmlDeviceGetHandleByIndex_v2";
	u64 count = 0, code;

	if (!load())
		return DRIVER_NOT_LOADED;
	number(SYSTEM, "count", &count);
	if (which >= count)
		return INVALID_ARGUMENT;
	if (number((int)which, key, &code))
		return (result)code;
	*gpu = (device)(intptr_t)(which + 1);
	return SUCCESS;
}

#define TEXT(call, key) \
	result call(device gpu, char *value, unsigned length) \
	{ \
		return tell_text(__func__, index_of(gpu), key, value, length); \
	}
#define UNSIGNED(call, key) \
	result call(device gpu, unsigned *value) \
	{ \
		return tell_unsigned(__func__, gpu, key, value); \
	}

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, "pages.pending")
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation")
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.generation_max")
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width_max")
UNSIGNED(nvmlDeviceGetPcieReplayCounter, "pcie.replays")
UNSIGNED(nvmlDeviceGetPowerUsage, "power.usage")
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "power.limit")
UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, "power.default")
UNSIGNED(nvmlDeviceGetPersistenceMode, "persistence")

result nvmlDeviceGetCurrentClocksEventReasons(device gpu, u64 *value)
{
	return tell(__func__, index_of(gpu), "clocks.reasons", value);
}

result nvmlDeviceGetClockInfo(device gpu, unsigned kind, unsigned *value)
{
	return tell_unsigned(__func__, gpu, kind == 1 ? "clocks.sm" : "clocks.memory", value);
}

result nvmlDeviceGetTemperature(device gpu, unsigned sensor, unsigned *value)
{
	(void)sensor;
	return tell_unsigned(__func__, gpu, "heat.now", value);
}

result nvmlDeviceGetTemperatureThreshold(device gpu, unsigned kind, unsigned *value)
{
	return tell_unsigned(__func__, gpu, kind ? "heat.slowdown" : "heat.shutdown", value);
}

struct margin {
	unsigned version;
	int left;
};

result nvmlDeviceGetMarginTemperature(device gpu, struct margin *value)
{
	return tell_unsigned(__func__, gpu, "heat.margin", (unsigned *)&value->left);
}

struct pci_info {
	char legacy[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
};

result nvmlDeviceGetPciInfo_v3(device gpu, struct pci_info *value)
{
	memset(value, 0, sizeof *value);
	return tell_text(__func__, index_of(gpu), "bus_id", value->bus_id, sizeof value->bus_id);
}

static result modes(const char *call, device gpu, const char *key, unsigned *now, unsigned *next)
{
	char later[40];
	result bad = tell_unsigned(call, gpu, key, now);

	snprintf(later, sizeof later, "%s_next", key);
	if (!bad && tell_unsigned(call, gpu, later, next))
		*next = *now;
	return bad;
}

result nvmlDeviceGetEccMode(device gpu, unsigned *now, unsigned *next)
{
	return modes(__func__, gpu, "ecc.mode", now, next);
}

result nvmlDeviceGetMigMode(device gpu, unsigned *now, unsigned *next)
{
	return modes(__func__, gpu, "mig", now, next);
}

result nvmlDeviceGetTotalEccErrors(device gpu, unsigned kind, unsigned since, u64 *value)
{
	char key[40];

	snprintf(key, sizeof key, "ecc.%s_%s", kind ? "uncorrected" : "corrected", since ? "aggregate" : "volatile");
	return tell(__func__, index_of(gpu), key, value);
}

struct sram {
	unsigned version;
	u64 aggregate_parity, aggregate_secded, aggregate_corrected;
	u64 volatile_parity, volatile_secded, volatile_corrected;
	u64 buckets[5];
	unsigned exceeded;
};

result nvmlDeviceGetSramEccErrorStatus(device gpu, struct sram *value)
{
	u64 exceeded = 0;
	int which = index_of(gpu);
	result bad = tell(__func__, which, "sram.uncorrected_volatile", &value->volatile_secded);

	if (bad)
		return bad;
	number(which, "sram.uncorrected_aggregate", &value->aggregate_secded);
	number(which, "sram.corrected_volatile", &value->volatile_corrected);
	number(which, "sram.exceeded", &exceeded);
	value->exceeded = (unsigned)exceeded;
	return SUCCESS;
}

result nvmlDeviceGetRemappedRows(device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
	result bad = tell_unsigned(__func__, gpu, "rows.corrected", corrected);

	if (!bad)
		bad = tell_unsigned(__func__, gpu, "rows.uncorrected", uncorrected);
	if (!bad)
		bad = tell_unsigned(__func__, gpu, "rows.pending", pending);
	return bad ? bad : tell_unsigned(__func__, gpu, "rows.failed", failed);
}

result nvmlDeviceGetRetiredPages(device gpu, unsigned cause, unsigned *count, u64 *pages)
{
	u64 found, room = *count;
	result bad = tell(__func__, index_of(gpu), cause ? "pages.double_bit" : "pages.single_bit", &found);

	if (bad)
		return bad;
	*count = (unsigned)found;
	if (found == 0)
		return SUCCESS;
	if (pages == NULL || room < found)
		return INSUFFICIENT_SIZE;
	for (u64 i = 0; i < found; i++)
		pages[i] = i << 12;
	return SUCCESS;
}

static result of_link(const char *call, device gpu, unsigned link, const char *what, u64 *value)
{
	char key[64];
	result bad;

	snprintf(key, sizeof key, "link.%u.%s", link, what);
	bad = tell(call, index_of(gpu), key, value);
	return bad == NOT_SUPPORTED ? INVALID_ARGUMENT : bad;
}

result nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *value)
{
	u64 found;
	result bad = of_link(__func__, gpu, link, "up", &found);

	if (!bad)
		*value = (unsigned)found;
	return bad;
}

result nvmlDeviceGetNvLinkRemoteDeviceType(device gpu, unsigned link, unsigned *value)
{
	(void)link;
	return tell_unsigned(__func__, gpu, "link.remote", value);
}

result nvmlDeviceGetNvLinkErrorCounter(device gpu, unsigned link, unsigned kind, u64 *value)
{
	static const char *const kinds[] = { "replays", "recoveries", "crc_flit", "crc_data" };

	return kind < 4 ? of_link(__func__, gpu, link, kinds[kind], value) : INVALID_ARGUMENT;
}

union field_number {
	double real;
	unsigned small;
	u64 large;
};

struct field_value {
	unsigned field, scope;
	long long timestamp, latency;
	unsigned type, code;
	union field_number value;
};

result nvmlDeviceGetFieldValues(device gpu, int count, struct field_value *values)
{
	result bad = enter(__func__, index_of(gpu));
	char key[40];
	u64 found = 0;

	if (bad)
		return bad;
	for (int i = 0; i < count; i++) {
		snprintf(key, sizeof key, "field.%u.%u", values[i].field, values[i].scope);
		values[i].type = 3; /* unsigned long long */
		values[i].code = number(index_of(gpu), key, &found) ? SUCCESS : NOT_SUPPORTED;
		values[i].value.large = values[i].code == SUCCESS ? found : 0;
		if (values[i].field == 230) { /* the recovery action is an unsigned int */
			values[i].type = 1;
			values[i].value.small = (unsigned)found;
		}
	}
	return SUCCESS;
}

struct fabric {
	unsigned version;
	unsigned char cluster[16];
	unsigned status, clique, state, health;
};

result nvmlDeviceGetGpuFabricInfoV(device gpu, struct fabric *value)
{
	result bad = tell_unsigned(__func__, gpu, "fabric.state", &value->state);

	if (bad)
		return bad;
	memset(value->cluster, 0xab, sizeof value->cluster);
	value->clique = 1;
	tell_unsigned(__func__, gpu, "fabric.status", &value->status);
	return tell_unsigned(__func__, gpu, "fabric.health", &value->health);
}

struct memory {
	u64 total, free, used;
};

struct memory_v2 {
	unsigned version;
	u64 total, reserved, free, used;
};

result nvmlDeviceGetMemoryInfo_v2(device gpu, struct memory_v2 *value)
{
	result bad = tell(__func__, index_of(gpu), "memory.total", &value->total);

	if (bad)
		return bad;
	value->reserved = 0;
	number(index_of(gpu), "memory.reserved", &value->reserved);
	bad = tell(__func__, index_of(gpu), "memory.used", &value->used);
	value->free = value->total - value->used - value->reserved;
	return bad;
}

result nvmlDeviceGetMemoryInfo(device gpu, struct memory *value)
{
	struct memory_v2 found;
	result bad = nvmlDeviceGetMemoryInfo_v2(gpu, &found);

	if (bad)
		return bad;
	value->total = found.total;
	value->used = found.used + found.reserved;
	value->free = found.free;
	return SUCCESS;
}

struct utilization {
	unsigned gpu, memory;
};

result nvmlDeviceGetUtilizationRates(device gpu, struct utilization *value)
{
	value->memory = 0;
	return tell_unsigned(__func__, gpu, "busy", &value->gpu);
}

struct process {
	unsigned pid;
	u64 used;
	unsigned gpu_instance, compute_instance;
};

/* "N processes PID:BYTES PID:BYTES" */
result nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *count, struct process *processes)
{
	result bad = enter(__func__, index_of(gpu));
	const char *found = find(index_of(gpu), "processes");
	unsigned room = *count, seen = 0;
	char line[512], *rest, *word;

	if (bad)
		return bad;
	*count = 0;
	if (found == NULL)
		return SUCCESS;
	snprintf(line, sizeof line, "%.*s", (int)strcspn(found, "\n"), found);
	for (word = strtok_r(line, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest), seen++) {
		char *colon = strchr(word, ':');

		if (processes == NULL || seen >= room)
			continue;
		processes[seen].pid = (unsigned)strtoul(word, NULL, 10);
		processes[seen].used = colon ? strtoull(colon + 1, NULL, 10) : 0;
		processes[seen].gpu_instance = processes[seen].compute_instance = 0xFFFFFFFF;
	}
	*count = seen;
	return seen > 0 && (processes == NULL || seen > room) ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Events: "system event.N GPU TYPE DATA", numbered from 0; an event set begins behind those that are there already. */
struct event_data {
	device gpu;
	u64 type, data;
	unsigned gpu_instance, compute_instance;
};

static const char *event(u64 place)
{
	char key[40];

	snprintf(key, sizeof key, "event.%llu", place);
	return find(SYSTEM, key);
}

result nvmlEventSetCreate(u64 **set)
{
	result bad = enter(__func__, SYSTEM);

	if (bad)
		return bad;
	*set = calloc(1, sizeof **set);
	while (event(**set) != NULL)
		++**set;
	return SUCCESS;
}

result nvmlDeviceGetSupportedEventTypes(device gpu, u64 *value)
{
	return tell(__func__, index_of(gpu), "events", value);
}

result nvmlDeviceRegisterEvents(device gpu, u64 types, u64 *set)
{
	(void)types, (void)set;
	return enter(__func__, index_of(gpu));
}

result nvmlEventSetWait_v2(u64 *set, struct event_data *data, unsigned milliseconds)
{
	result bad = enter(__func__, SYSTEM);
	const unsigned step = 20;

	for (unsigned waited = 0; !bad; waited += step) {
		const char *found = event(*set);
		unsigned which;

		if (found != NULL && sscanf(found, "%u %lli %lli", &which, (long long *)&data->type, (long long *)&data->data) == 3) {
			++*set;
			data->gpu = (device)(intptr_t)(which + 1);
			data->gpu_instance = data->compute_instance = 0xFFFFFFFF;
			return SUCCESS;
		}
		if (waited >= milliseconds)
			return TIMEOUT;
		usleep(1000 * step);
	}
	return bad;
}

result nvmlEventSetFree(u64 *set)
{
	free(set);
	return SUCCESS;
}
