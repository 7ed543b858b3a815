/* What programs ask of cards that manage them: which there are, what they are made of, in what state they are.
 *
 *     struct mic_devices_list *list;
 *     int count, number;
 *     mic_get_devices(&list); mic_get_ndevices(list, &count);
 *     mic_get_device_at_index(list, 0, &number); mic_free_devices(list);
 *
 *     struct mic_device *device;
 *     struct mic_cores_info *cores;
 *     uint32_t of_card;
 *     mic_open_device(&device, number);
 *     mic_get_cores_info(device, &cores); mic_get_cores_count(cores, &of_card); mic_free_cores_info(cores);
 *     mic_close_device(device);
 *
 * The names and types are those of MPSS 3. An object shows what was so when it was made, and belongs to the program until
 * that frees it. Of text, as much is written as there is room for, and the size becomes that of the whole if it was less.
 * Sizes of memory are in KiB. What a card of a rig has not, or nobody knows of it, is E_MIC_NOT_IMPLEMENTED: sensors, power,
 * flash, its place on the bus. mic_get_error_string says of this thread's last call that failed, why.
 *
 * Compile and link with what `snaprig include --micmgmt` prints: -lmicmgmt. */
#ifndef MICLIB_INCLUDE_MICLIB_H_
#define MICLIB_INCLUDE_MICLIB_H_

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct mic_device;
struct mic_devices_list;
struct mic_device_mem;
struct mic_processor_info;
struct mic_thermal_info;
struct mic_version_info;
struct mic_cores_info;
struct mic_power_util_info;
struct mic_memory_util_info;
struct mic_core_util;
struct mic_power_limit;
struct mic_pci_config;
struct mic_flash_op;
struct mic_flash_status_info;
struct mic_turbo_info;
struct mic_throttle_state_info;
struct mic_uos_pm_config;

/* A card's type: Knights Corner. */
#define KNC_ID (1)

/* How calls end. */
typedef enum _error_code {
    E_MIC_SUCCESS = 0,
    E_MIC_INVAL = 1,
    E_MIC_ACCESS,
    E_MIC_NOENT,
    E_MIC_UNSUPPORTED_DEV,
    E_MIC_NOT_IMPLEMENTED,
    E_MIC_DRIVER_INIT,
    E_MIC_DRIVER_NOT_LOADED,
    E_MIC_IOCTL_FAILED,
    E_MIC_ERROR_NOT_FOUND,
    E_MIC_NOMEM,
    E_MIC_RANGE,
    E_MIC_INTERNAL,
    E_MIC_SYSTEM,
    E_MIC_SCIF_ERROR,
    E_MIC_STACK
} mic_error_code;

/* How writing the flash memory goes. */
#define FLASH_OP_STATUS (0x1 << 4)
#define SMC_OP_STATUS (0x2 << 4)
typedef enum _flash_status {
    FLASH_OP_IDLE = 0,
    FLASH_OP_INVALID,
    FLASH_OP_IN_PROGRESS = (FLASH_OP_STATUS | 1),
    FLASH_OP_COMPLETED,
    FLASH_OP_FAILED,
    FLASH_OP_AUTH_FAILED,
    SMC_OP_IN_PROGRESS = (SMC_OP_STATUS | 1),
    SMC_OP_COMPLETED,
    SMC_OP_FAILED,
    SMC_OP_AUTH_FAILED
} mic_flash_status;
#define FLASH_OP(status) ((status) & FLASH_OP_STATUS)
#define SMC_OP(status) ((status) & SMC_OP_STATUS)

/* Errors. */
const char *mic_get_error_string(void);
int mic_clear_error_string(void);

/* Which cards there are. */
int mic_get_devices(struct mic_devices_list **list);
int mic_free_devices(struct mic_devices_list *list);
int mic_get_ndevices(struct mic_devices_list *list, int *count);
int mic_get_device_at_index(struct mic_devices_list *list, int index, int *number);

/* One of them. */
int mic_open_device(struct mic_device **device, uint32_t number);
int mic_close_device(struct mic_device *device);
int mic_get_device_type(struct mic_device *device, uint32_t *type);
const char *mic_get_device_name(struct mic_device *device);
int mic_get_sysfs_attribute(struct mic_device *device, const char *name, char *value, size_t *size);
int mic_is_ras_avail(struct mic_device *device, int *is);
int mic_get_silicon_sku(struct mic_device *device, char *sku, size_t *size);
int mic_get_serial_number(struct mic_device *device, char *serial, size_t *size);
int mic_get_uuid(struct mic_device *device, uint8_t *uuid, size_t *size);

/* Its state. */
int mic_enter_maint_mode(struct mic_device *device);
int mic_leave_maint_mode(struct mic_device *device);
int mic_in_maint_mode(struct mic_device *device, int *is);
int mic_in_ready_state(struct mic_device *device, int *is);
int mic_get_post_code(struct mic_device *device, char *code, size_t *size);

/* Its flash memory. */
int mic_flash_size(struct mic_device *device, size_t *size);
int mic_flash_active_offs(struct mic_device *device, off_t *active);
int mic_flash_update_start(struct mic_device *device, void *buffer, size_t size, struct mic_flash_op **operation);
int mic_flash_update_done(struct mic_flash_op *operation);
int mic_flash_read_start(struct mic_device *device, void *buffer, size_t size, struct mic_flash_op **operation);
int mic_flash_read_done(struct mic_flash_op *operation);
int mic_set_ecc_mode_start(struct mic_device *device, uint16_t enabled, struct mic_flash_op **operation);
int mic_set_ecc_mode_done(struct mic_flash_op *operation);
int mic_get_flash_status_info(struct mic_flash_op *operation, struct mic_flash_status_info **object);
int mic_get_progress(struct mic_flash_status_info *object, uint32_t *percent);
int mic_get_status(struct mic_flash_status_info *object, int *status);
int mic_get_ext_status(struct mic_flash_status_info *object, int *status);
int mic_free_flash_status_info(struct mic_flash_status_info *object);
int mic_flash_version(struct mic_device *device, void *buffer, char *version, size_t size);
int mic_get_flash_vendor_device(struct mic_device *device, char *vendor, size_t *size);

/* Its PCI function. */
int mic_get_pci_config(struct mic_device *device, struct mic_pci_config **object);
int mic_get_pci_domain_id(struct mic_pci_config *object, uint16_t *value);
int mic_get_bus_number(struct mic_pci_config *object, uint16_t *value);
int mic_get_device_number(struct mic_pci_config *object, uint16_t *value);
int mic_get_vendor_id(struct mic_pci_config *object, uint16_t *value);
int mic_get_device_id(struct mic_pci_config *object, uint16_t *value);
int mic_get_revision_id(struct mic_pci_config *object, uint8_t *value);
int mic_get_subsystem_id(struct mic_pci_config *object, uint16_t *value);
int mic_get_link_speed(struct mic_pci_config *object, char *text, size_t *size);
int mic_get_link_width(struct mic_pci_config *object, uint32_t *value);
int mic_get_max_payload(struct mic_pci_config *object, uint32_t *value);
int mic_get_max_readreq(struct mic_pci_config *object, uint32_t *value);
int mic_free_pci_config(struct mic_pci_config *object);

/* Temperatures and fans. */
int mic_get_thermal_info(struct mic_device *device, struct mic_thermal_info **object);
int mic_get_smc_hwrevision(struct mic_thermal_info *object, char *text, size_t *size);
int mic_get_smc_fwversion(struct mic_thermal_info *object, char *text, size_t *size);
int mic_is_smc_boot_loader_ver_supported(struct mic_thermal_info *object, int *value);
int mic_get_smc_boot_loader_ver(struct mic_thermal_info *object, char *text, size_t *size);
int mic_get_fsc_status(struct mic_thermal_info *object, uint32_t *value);
int mic_get_die_temp(struct mic_thermal_info *object, uint32_t *value);
int mic_is_die_temp_valid(struct mic_thermal_info *object, int *value);
int mic_get_gddr_temp(struct mic_thermal_info *object, uint16_t *value);
int mic_is_gddr_temp_valid(struct mic_thermal_info *object, int *value);
int mic_get_fanin_temp(struct mic_thermal_info *object, uint16_t *value);
int mic_is_fanin_temp_valid(struct mic_thermal_info *object, int *value);
int mic_get_fanout_temp(struct mic_thermal_info *object, uint16_t *value);
int mic_is_fanout_temp_valid(struct mic_thermal_info *object, int *value);
int mic_get_vccp_temp(struct mic_thermal_info *object, uint16_t *value);
int mic_is_vccp_temp_valid(struct mic_thermal_info *object, int *value);
int mic_get_vddg_temp(struct mic_thermal_info *object, uint16_t *value);
int mic_is_vddg_temp_valid(struct mic_thermal_info *object, int *value);
int mic_get_vddq_temp(struct mic_thermal_info *object, uint16_t *value);
int mic_is_vddq_temp_valid(struct mic_thermal_info *object, int *value);
int mic_get_fan_rpm(struct mic_thermal_info *object, uint32_t *value);
int mic_get_fan_pwm(struct mic_thermal_info *object, uint32_t *value);
int mic_free_thermal_info(struct mic_thermal_info *object);

/* Its memory. */
int mic_get_memory_info(struct mic_device *device, struct mic_device_mem **object);
int mic_get_memory_vendor(struct mic_device_mem *object, char *text, size_t *size);
int mic_get_memory_revision(struct mic_device_mem *object, uint32_t *value);
int mic_get_memory_density(struct mic_device_mem *object, uint32_t *value);
int mic_get_memory_size(struct mic_device_mem *object, uint32_t *value);
int mic_get_memory_speed(struct mic_device_mem *object, uint32_t *value);
int mic_get_memory_type(struct mic_device_mem *object, char *text, size_t *size);
int mic_get_memory_frequency(struct mic_device_mem *object, uint32_t *value);
int mic_get_memory_voltage(struct mic_device_mem *object, uint32_t *value);
int mic_get_ecc_mode(struct mic_device_mem *object, uint16_t *value);
int mic_free_memory_info(struct mic_device_mem *object);
int mic_get_memory_utilization_info(struct mic_device *device, struct mic_memory_util_info **object);
int mic_get_total_memory_size(struct mic_memory_util_info *object, uint32_t *value);
int mic_get_available_memory_size(struct mic_memory_util_info *object, uint32_t *value);
int mic_get_memory_buffers_size(struct mic_memory_util_info *object, uint32_t *value);
int mic_free_memory_utilization_info(struct mic_memory_util_info *object);

/* Its processors. */
int mic_get_processor_info(struct mic_device *device, struct mic_processor_info **object);
int mic_get_processor_model(struct mic_processor_info *object, uint16_t *model, uint16_t *extended);
int mic_get_processor_family(struct mic_processor_info *object, uint16_t *family, uint16_t *extended);
int mic_get_processor_type(struct mic_processor_info *object, uint16_t *value);
int mic_get_processor_steppingid(struct mic_processor_info *object, uint32_t *value);
int mic_get_processor_stepping(struct mic_processor_info *object, char *text, size_t *size);
int mic_free_processor_info(struct mic_processor_info *object);
int mic_get_cores_info(struct mic_device *device, struct mic_cores_info **object);
int mic_get_cores_count(struct mic_cores_info *object, uint32_t *value);
int mic_get_cores_voltage(struct mic_cores_info *object, uint32_t *value);
int mic_get_cores_frequency(struct mic_cores_info *object, uint32_t *value);
int mic_free_cores_info(struct mic_cores_info *object);
int mic_alloc_core_util(struct mic_core_util **object);
int mic_update_core_util(struct mic_device *device, struct mic_core_util *object);
int mic_get_idle_counters(struct mic_core_util *object, uint64_t *value);
int mic_get_nice_counters(struct mic_core_util *object, uint64_t *value);
int mic_get_sys_counters(struct mic_core_util *object, uint64_t *value);
int mic_get_user_counters(struct mic_core_util *object, uint64_t *value);
int mic_get_idle_sum(struct mic_core_util *object, uint64_t *value);
int mic_get_sys_sum(struct mic_core_util *object, uint64_t *value);
int mic_get_nice_sum(struct mic_core_util *object, uint64_t *value);
int mic_get_user_sum(struct mic_core_util *object, uint64_t *value);
int mic_get_jiffy_counter(struct mic_core_util *object, uint64_t *value);
int mic_get_num_cores(struct mic_core_util *object, uint16_t *value);
int mic_get_threads_core(struct mic_core_util *object, uint16_t *value);
int mic_free_core_util(struct mic_core_util *object);

/* What runs on it. */
int mic_get_version_info(struct mic_device *device, struct mic_version_info **object);
int mic_get_uos_version(struct mic_version_info *object, char *text, size_t *size);
int mic_get_flash_version(struct mic_version_info *object, char *text, size_t *size);
int mic_get_fsc_strap(struct mic_version_info *object, char *text, size_t *size);
int mic_free_version_info(struct mic_version_info *object);
int mic_get_uos_pm_config(struct mic_device *device, struct mic_uos_pm_config **object);
int mic_get_cpufreq_mode(struct mic_uos_pm_config *object, int *value);
int mic_get_corec6_mode(struct mic_uos_pm_config *object, int *value);
int mic_get_pc3_mode(struct mic_uos_pm_config *object, int *value);
int mic_get_pc6_mode(struct mic_uos_pm_config *object, int *value);
int mic_free_uos_pm_config(struct mic_uos_pm_config *object);

/* Power, turbo mode, throttling, its light. */
int mic_get_power_utilization_info(struct mic_device *device, struct mic_power_util_info **object);
int mic_get_total_power_readings_w0(struct mic_power_util_info *object, uint32_t *value);
int mic_get_total_power_sensor_sts_w0(struct mic_power_util_info *object, uint32_t *value);
int mic_get_total_power_readings_w1(struct mic_power_util_info *object, uint32_t *value);
int mic_get_total_power_sensor_sts_w1(struct mic_power_util_info *object, uint32_t *value);
int mic_get_inst_power_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_inst_power_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_max_inst_power_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_max_inst_power_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_pcie_power_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_pcie_power_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_c2x3_power_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_c2x3_power_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_c2x4_power_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_c2x4_power_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vccp_power_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vccp_power_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vccp_current_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vccp_current_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vccp_voltage_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vccp_voltage_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddg_power_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddg_power_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddg_current_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddg_current_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddg_voltage_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddg_voltage_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddq_power_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddq_power_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddq_current_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddq_current_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddq_voltage_readings(struct mic_power_util_info *object, uint32_t *value);
int mic_get_vddq_voltage_sensor_sts(struct mic_power_util_info *object, uint32_t *value);
int mic_free_power_utilization_info(struct mic_power_util_info *object);
int mic_get_power_limit(struct mic_device *device, struct mic_power_limit **object);
int mic_get_power_phys_limit(struct mic_power_limit *object, uint32_t *value);
int mic_get_power_hmrk(struct mic_power_limit *object, uint32_t *value);
int mic_get_power_lmrk(struct mic_power_limit *object, uint32_t *value);
int mic_free_power_limit(struct mic_power_limit *object);
int mic_get_turbo_state_info(struct mic_device *device, struct mic_turbo_info **object);
int mic_get_turbo_state(struct mic_turbo_info *object, uint32_t *value);
int mic_get_turbo_mode(struct mic_turbo_info *object, uint32_t *value);
int mic_get_turbo_state_valid(struct mic_turbo_info *object, uint32_t *value);
int mic_free_turbo_info(struct mic_turbo_info *object);
int mic_set_turbo_mode(struct mic_device *device, uint32_t *mode);
int mic_get_throttle_state_info(struct mic_device *device, struct mic_throttle_state_info **object);
int mic_get_thermal_ttl_active(struct mic_throttle_state_info *object, int *value);
int mic_get_thermal_ttl_current_len(struct mic_throttle_state_info *object, uint32_t *value);
int mic_get_thermal_ttl_count(struct mic_throttle_state_info *object, uint32_t *value);
int mic_get_thermal_ttl_time(struct mic_throttle_state_info *object, uint32_t *value);
int mic_get_power_ttl_active(struct mic_throttle_state_info *object, int *value);
int mic_get_power_ttl_current_len(struct mic_throttle_state_info *object, uint32_t *value);
int mic_get_power_ttl_count(struct mic_throttle_state_info *object, uint32_t *value);
int mic_get_power_ttl_time(struct mic_throttle_state_info *object, uint32_t *value);
int mic_free_throttle_state_info(struct mic_throttle_state_info *object);
int mic_get_led_alert(struct mic_device *device, uint32_t *alert);
int mic_set_led_alert(struct mic_device *device, uint32_t *alert);

#ifdef __cplusplus
}
#endif

#endif
