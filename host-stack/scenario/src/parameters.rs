//! What the parameters of all scenarios have in common: how plans are read that were written before each
//! scenario had parameters of its own.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use snaprig_sim::Parameters;

/// Reads a workload of which earlier plans may say more than it has: they all had the same fields, whether
/// those meant anything or not.
pub fn without<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    meaningless: &[&str],
    deserializer: D,
) -> Result<T, D::Error> {
    let mut workload = Parameters::deserialize(deserializer)?;
    workload.retain(|name, _| !meaningless.contains(&&**name));
    T::deserialize(serde_json::Value::Object(workload)).map_err(D::Error::custom)
}
