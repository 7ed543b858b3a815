//! Calls that have no meaning for a card of a rig.

use std::ffi::c_int;

use crate::call::{Failure, call, code};

/// Functions that say so, whatever they are given: none of their arguments is looked at.
macro_rules! absent {
    ($($name:ident)*) => {$(
        pub extern "C" fn $name() -> c_int {
            call(|| {
                let why = concat!(stringify!($name), ": a card of a rig has no such thing");
                Err(Failure::new(code::NOT_IMPLEMENTED, why))
            })
        }
    )*};
}

absent! {
    mic_enter_maint_mode mic_leave_maint_mode mic_flash_size mic_flash_active_offs mic_flash_update_start
    mic_flash_update_done mic_flash_read_start mic_flash_read_done mic_set_ecc_mode_start mic_set_ecc_mode_done
    mic_get_flash_status_info mic_get_progress mic_get_status mic_get_ext_status mic_free_flash_status_info
    mic_flash_version mic_get_flash_vendor_device mic_get_pci_domain_id mic_get_bus_number mic_get_device_number
    mic_get_link_speed mic_get_link_width mic_get_max_payload mic_get_max_readreq mic_get_smc_hwrevision
    mic_get_smc_fwversion mic_get_smc_boot_loader_ver mic_get_fsc_status mic_get_die_temp mic_get_gddr_temp
    mic_get_fanin_temp mic_get_fanout_temp mic_get_vccp_temp mic_get_vddg_temp mic_get_vddq_temp mic_get_fan_rpm
    mic_get_fan_pwm mic_get_memory_vendor mic_get_memory_revision mic_get_memory_density mic_get_memory_speed
    mic_get_memory_type mic_get_memory_frequency mic_get_memory_voltage mic_get_cores_voltage
    mic_get_cores_frequency mic_get_flash_version mic_get_fsc_strap mic_get_silicon_sku mic_get_serial_number
    mic_get_power_utilization_info mic_get_total_power_readings_w0 mic_get_total_power_sensor_sts_w0
    mic_get_total_power_readings_w1 mic_get_total_power_sensor_sts_w1 mic_get_inst_power_readings
    mic_get_inst_power_sensor_sts mic_get_max_inst_power_readings mic_get_max_inst_power_sensor_sts
    mic_get_pcie_power_readings mic_get_pcie_power_sensor_sts mic_get_c2x3_power_readings
    mic_get_c2x3_power_sensor_sts mic_get_c2x4_power_readings mic_get_c2x4_power_sensor_sts
    mic_get_vccp_power_readings mic_get_vccp_power_sensor_sts mic_get_vccp_current_readings
    mic_get_vccp_current_sensor_sts mic_get_vccp_voltage_readings mic_get_vccp_voltage_sensor_sts
    mic_get_vddg_power_readings mic_get_vddg_power_sensor_sts mic_get_vddg_current_readings
    mic_get_vddg_current_sensor_sts mic_get_vddg_voltage_readings mic_get_vddg_voltage_sensor_sts
    mic_get_vddq_power_readings mic_get_vddq_power_sensor_sts mic_get_vddq_current_readings
    mic_get_vddq_current_sensor_sts mic_get_vddq_voltage_readings mic_get_vddq_voltage_sensor_sts
    mic_free_power_utilization_info mic_get_power_limit mic_get_power_phys_limit mic_get_power_hmrk
    mic_get_power_lmrk mic_free_power_limit mic_get_memory_buffers_size mic_get_idle_counters mic_get_nice_counters
    mic_get_sys_counters mic_get_user_counters mic_get_idle_sum mic_get_sys_sum mic_get_nice_sum mic_get_user_sum
    mic_get_jiffy_counter mic_get_led_alert mic_set_led_alert mic_get_turbo_state_info mic_get_turbo_state
    mic_get_turbo_mode mic_get_turbo_state_valid mic_set_turbo_mode mic_free_turbo_info mic_get_throttle_state_info
    mic_get_thermal_ttl_active mic_get_thermal_ttl_current_len mic_get_thermal_ttl_count mic_get_thermal_ttl_time
    mic_get_power_ttl_active mic_get_power_ttl_current_len mic_get_power_ttl_count mic_get_power_ttl_time
    mic_free_throttle_state_info mic_get_uos_pm_config mic_get_cpufreq_mode mic_get_corec6_mode mic_get_pc3_mode
    mic_get_pc6_mode mic_free_uos_pm_config mic_get_uuid
}
