//! The fields that evictd shares with the KubeletConfiguration, in the map form and in the string form.

use std::{collections::BTreeMap, time::Duration};

use evictd_engine::model::{quantity::Quantity, settings::EvictionConfig};

use super::{
    ConfigError,
    hard_layers::HardLayers,
    origin::{Origin, Origins},
    signal_values::signal_values,
    thresholds::{DEFAULT_EVICTION_HARD, ENFORCE_PODS, SignalValues, ThresholdTexts},
};
use crate::decode::ObjectDecoder;

/// Default of `evictionPressureTransitionPeriod`: how long a node condition stays after the last sign of pressure.
pub const DEFAULT_PRESSURE_TRANSITION_PERIOD: Duration = Duration::from_secs(300);

/// The entries that `enforceNodeAllocatable` may have.
const ENFORCEABLE: [&str; 6] = [
    "none",
    ENFORCE_PODS,
    "system-reserved",
    "kube-reserved",
    "system-reserved-compressible",
    "kube-reserved-compressible",
];

/// The fields of one file; `None` is an absent field.
#[derive(Debug, Default)]
pub struct EvictionFields {
    hard: Option<SignalValues>,
    soft: Option<SignalValues>,
    soft_grace_period: Option<SignalValues>,
    minimum_reclaim: Option<SignalValues>,
    max_pod_grace_period: Option<i32>,
    pressure_transition_period: Option<Duration>,
    merge_defaults: Option<bool>,
    enforce_node_allocatable: Option<Vec<String>>,
    system_reserved: Option<Quantity>,
    kube_reserved: Option<Quantity>,
    /// The kubelet's alone.
    local_storage_capacity_isolation: Option<bool>,
}

impl EvictionFields {
    /// Takes the fields out of a document.
    ///
    /// # Errors
    /// A field whose value cannot be used.
    pub fn take(fields: &mut ObjectDecoder) -> Result<Self, ConfigError> {
        Ok(Self {
            hard: signal_values(fields, "evictionHard", '<')?,
            soft: signal_values(fields, "evictionSoft", '<')?,
            soft_grace_period: signal_values(fields, "evictionSoftGracePeriod", '=')?,
            minimum_reclaim: signal_values(fields, "evictionMinimumReclaim", '=')?,
            max_pod_grace_period: fields.int32("evictionMaxPodGracePeriod")?,
            pressure_transition_period: transition_period(fields)?,
            merge_defaults: fields.boolean("mergeDefaultEvictionSettings")?,
            enforce_node_allocatable: enforced(fields)?,
            system_reserved: reserved_memory(fields, "systemReserved")?,
            kube_reserved: reserved_memory(fields, "kubeReserved")?,
            local_storage_capacity_isolation: None,
        })
    }

    /// Takes the fields as [`Self::take`] does, and those that only a KubeletConfiguration has.
    ///
    /// # Errors
    /// A field whose value cannot be used.
    pub(super) fn take_of_kubelet(fields: &mut ObjectDecoder) -> Result<Self, ConfigError> {
        Ok(Self {
            local_storage_capacity_isolation: fields.boolean("localStorageCapacityIsolation")?,
            ..Self::take(fields)?
        })
    }

    /// Sets the transition period directly; in a file it is a text and never zero.
    pub fn with_transition_period(mut self, period: Option<Duration>) -> Self {
        self.pressure_transition_period = period.or(self.pressure_transition_period);
        self
    }

    /// Takes absent fields from `base`.
    fn or(self, base: Self) -> Self {
        Self {
            // `resolve_over` has taken the hard thresholds out of both.
            hard: None,
            soft: self.soft.or(base.soft),
            soft_grace_period: self.soft_grace_period.or(base.soft_grace_period),
            minimum_reclaim: self.minimum_reclaim.or(base.minimum_reclaim),
            max_pod_grace_period: self.max_pod_grace_period.or(base.max_pod_grace_period),
            pressure_transition_period: self
                .pressure_transition_period
                .or(base.pressure_transition_period),
            merge_defaults: self.merge_defaults.or(base.merge_defaults),
            enforce_node_allocatable: self
                .enforce_node_allocatable
                .or(base.enforce_node_allocatable),
            system_reserved: self.system_reserved.or(base.system_reserved),
            kube_reserved: self.kube_reserved.or(base.kube_reserved),
            local_storage_capacity_isolation: self
                .local_storage_capacity_isolation
                .or(base.local_storage_capacity_isolation),
        }
    }

    /// Applies the kubelet's defaults and parses the thresholds.
    ///
    /// # Errors
    /// [`ConfigError`] names the field whose threshold, grace period or amount cannot be read.
    pub fn resolve(self) -> Result<EvictionConfig, ConfigError> {
        let (config, _) = self.resolve_over(Self::default(), &HardLayers::default())?;
        Ok(config)
    }

    /// Resolves the fields as [`Self::resolve`] does, with the kubelet's fields below these ones; also returns where
    /// each threshold comes from.
    pub(super) fn resolve_over(
        mut self,
        mut kubelet: Self,
        hard_layers: &HardLayers,
    ) -> Result<(EvictionConfig, Origins), ConfigError> {
        let merge = match self.hard {
            // The kubelet's flag is about the kubelet's map.
            Some(_) => self.merge_defaults,
            None => self.merge_defaults.or(kubelet.merge_defaults),
        };
        let (own, of_kubelet) = (self.hard.take(), kubelet.hard.take());
        let hard = layers(
            own,
            of_kubelet,
            hard_layers.fallback.as_ref(),
            merge == Some(true),
        );
        let origins = Origins {
            hard: hard
                .iter()
                .filter_map(|(signal, (_, origin))| Some((signal.parse().ok()?, *origin)))
                .collect(),
            soft: match (&self.soft, &kubelet.soft) {
                (Some(_), _) => Origin::Own,
                (None, Some(_)) => Origin::Kubelet,
                (None, None) => Origin::Defaults,
            },
        };
        let hard = hard.into_iter().map(|(signal, (text, _))| (signal, text));
        let mut config = self.or(kubelet).parse(hard.collect())?;
        hard_layers.raise(&mut config.thresholds, &origins);
        Ok((config, origins))
    }

    fn parse(self, hard: SignalValues) -> Result<EvictionConfig, ConfigError> {
        let texts = ThresholdTexts {
            hard,
            soft: self.soft.unwrap_or_default(),
            soft_grace_period: self.soft_grace_period.unwrap_or_default(),
            minimum_reclaim: self.minimum_reclaim.unwrap_or_default(),
            enforce_node_allocatable: self
                .enforce_node_allocatable
                .unwrap_or_else(|| vec![ENFORCE_PODS.to_owned()]),
        };
        let mut reserved = Quantity::ZERO;
        for part in [&self.system_reserved, &self.kube_reserved]
            .into_iter()
            .flatten()
        {
            reserved.add(part);
        }
        Ok(EvictionConfig {
            reserved_memory: reserved.floor(),
            limits_local_storage: self.local_storage_capacity_isolation.unwrap_or(true),
            thresholds: texts.parse()?,
            max_pod_grace_period_seconds: self.max_pod_grace_period.unwrap_or(0),
            pressure_transition_period: self
                .pressure_transition_period
                .unwrap_or(DEFAULT_PRESSURE_TRANSITION_PERIOD),
        })
    }
}

/// The hard thresholds, each with its origin. evictd's own map replaces the kubelet's as a whole. The fallback holds
/// for signals that the kubelet's map does not name, and replaces the defaults where there is no map.
fn layers(
    own: Option<SignalValues>,
    kubelet: Option<SignalValues>,
    fallback: Option<&SignalValues>,
    merge_defaults: bool,
) -> BTreeMap<String, (String, Origin)> {
    let defaults = DEFAULT_EVICTION_HARD.iter();
    let defaults = defaults.map(|(signal, value)| (signal.to_string(), (*value).to_owned()));
    let is_unset = own.is_none() && kubelet.is_none();
    let with_defaults = merge_defaults || is_unset && fallback.is_none();
    let defaults: Option<SignalValues> = with_defaults.then(|| defaults.collect());
    let fallback = fallback.filter(|_| own.is_none()).cloned();
    // A later layer replaces an earlier one. Defaults that the kubelet merges into its map are part of that map.
    let below = match is_unset {
        true => [(defaults, Origin::Defaults), (fallback, Origin::Fallback)],
        false => [(fallback, Origin::Fallback), (defaults, Origin::Defaults)],
    };
    let above = match own {
        Some(own) => (Some(own), Origin::Own),
        None => (kubelet, Origin::Kubelet),
    };
    let all = below.into_iter().chain([above]);
    let all = all.flat_map(|(signal_values, origin)| {
        let signal_values = signal_values.unwrap_or_default().into_iter();
        signal_values.map(move |(signal, text)| (signal, (text, origin)))
    });
    all.collect()
}

/// The resources that `systemReserved` and `kubeReserved` may have (`parseResourceList` in the kubelet's `server.go`).
const RESERVABLE: [&str; 4] = ["memory", "cpu", "ephemeral-storage", "pid"];

/// Zero means the default, as in the kubelet (`SetDefaults_KubeletConfiguration`).
fn transition_period(fields: &mut ObjectDecoder) -> Result<Option<Duration>, ConfigError> {
    let period = fields.duration("evictionPressureTransitionPeriod")?;
    Ok(period.map(|period| match period.is_zero() {
        true => DEFAULT_PRESSURE_TRANSITION_PERIOD,
        false => period,
    }))
}

/// The memory in a map of resources to quantities. A resource that cannot be reserved is an error, as in the kubelet;
/// the values of the others are ignored.
fn reserved_memory(
    fields: &mut ObjectDecoder,
    name: &str,
) -> Result<Option<Quantity>, ConfigError> {
    let Some(mut resources) = fields.object(name)? else {
        return Ok(None);
    };
    resources.deny_fields_beside(&RESERVABLE)?;
    let path = resources.path_of("memory");
    match resources.parsed::<Quantity>("memory")? {
        Some(memory) if memory.sign() < 0 => Err(ConfigError::text(
            path,
            &memory.to_string(),
            "must not be negative",
        )),
        memory => Ok(Some(memory.unwrap_or_default())),
    }
}

fn enforced(fields: &mut ObjectDecoder) -> Result<Option<Vec<String>>, ConfigError> {
    let name = "enforceNodeAllocatable";
    let Some(keys) = fields.texts(name)? else {
        return Ok(None);
    };
    for key in &keys {
        if !key.is_empty() && !ENFORCEABLE.contains(&key.as_str()) {
            let reason = format!("must be one of {}", ENFORCEABLE.join(", "));
            return Err(ConfigError::text(fields.path_of(name), key, reason));
        }
    }
    if keys.len() > 1 && keys.iter().any(|key| key == "none") {
        return Err(ConfigError::text(
            fields.path_of(name),
            "none",
            "excludes all other entries",
        ));
    }
    Ok(Some(keys))
}
