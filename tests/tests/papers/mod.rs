//! The paper's workloads (Table 5).

/// Makes tests, on each platform, of a function that takes platform, folder, golden output and arguments of a workload.
macro_rules! on_each_workload {
    ($check:ident) => {
        fn molecular_dynamics(platform: &str) {
            $check(platform, "md", "golden", &[]);
        }

        fn monte_carlo(platform: &str) {
            $check(platform, "mc", "golden", &[]);
        }

        fn matrix_multiplications(platform: &str) {
            $check(platform, "sg", "golden", &[]);
        }

        fn semantic_search(platform: &str) {
            $check(platform, "ss", "golden", &[]);
        }

        fn k_means(platform: &str) {
            $check(platform, "km", "golden", &[]);
        }

        fn lu_of_many_zones(platform: &str) {
            $check(platform, "mz", "golden.lu", &["--solver", "0"]);
        }

        fn sp_of_many_zones(platform: &str) {
            $check(platform, "mz", "golden.sp", &["--solver", "1"]);
        }

        fn bt_of_many_zones(platform: &str) {
            $check(platform, "mz", "golden.bt", &["--solver", "2"]);
        }

        on_each_platform! {
            molecular_dynamics
            monte_carlo
            matrix_multiplications
            semantic_search
            k_means
            lu_of_many_zones
            sp_of_many_zones
            bt_of_many_zones
        }
    };
}

pub(crate) use on_each_workload;
