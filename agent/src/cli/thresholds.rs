//! `evictd thresholds`: the thresholds in force.

use std::path::PathBuf;

use evictd_config::{Config, Origin, Origins};
use evictd_engine::{Layout, Resource, Threshold, ThresholdValue, model::settings::Mode};
use serde::Serialize;

use super::{
    CommandError, OutputFormat, print_stand_in,
    run::resolve_config,
    table::{Table, or_dash},
    to_json,
};
use crate::daemon::no_hard_threshold;

/// Arguments of `evictd thresholds`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// evictd's configuration file; one that holds nothing but eviction fields will do
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The node's KubeletConfiguration: eviction fields that the configuration file lacks are taken from it
    #[arg(long, value_name = "FILE")]
    kubelet_config: Option<PathBuf>,
    /// How to print them
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// A threshold as programs read it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThresholdJson {
    signal: &'static str,
    value: ValueJson,
    grace_period_seconds: Seconds,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_reclaim: Option<ValueJson>,
    /// Origin of the threshold, where the kubelet alone would have another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'static str>,
}

/// A quantity in the signal's unit, rounded up, or a share of the capacity (0.1 for 10 %).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum ValueJson {
    Quantity(i64),
    Percentage(f32),
    /// A step on top of a value.
    #[serde(rename_all = "camelCase")]
    Raised {
        value: Box<ValueJson>,
        by: Box<ValueJson>,
        /// The share of the capacity above which nothing is added.
        at_most: f32,
    },
}

/// Whole seconds are printed as whole numbers.
#[derive(Serialize)]
#[serde(untagged)]
enum Seconds {
    Whole(u64),
    Fraction(f64),
}

pub(super) fn run(arguments: &Arguments) -> Result<String, CommandError> {
    let file = arguments.kubelet_config.as_deref();
    let (mut config, kubelet) = resolve_config(&arguments.config, file)?;
    // A file that is named on the command line has to be there.
    if let (Some(_), Some(reason), false) = (file, &kubelet.unreadable, kubelet.holds_file()) {
        return Err(CommandError::Argument {
            what: "--kubelet-config".to_owned(),
            reason: reason.to_string(),
        });
    }
    print_stand_in(&kubelet);
    let order = |threshold: &Threshold| (threshold.signal, threshold.grace_period);
    config.eviction.thresholds.sort_by_key(order);
    let (thresholds, origins) = (&config.eviction.thresholds, &config.origins);
    match arguments.output {
        OutputFormat::Json => to_json(
            &thresholds
                .iter()
                .map(|threshold| ThresholdJson::new(threshold, origins))
                .collect::<Vec<_>>(),
        ),
        OutputFormat::Table => {
            let table = table(thresholds, origins);
            let reason = no_hard_threshold(thresholds).map(|reason| format!("\n{reason}\n"));
            let pace = (!thresholds.is_empty()).then(|| pace(&config));
            Ok(table + &reason.unwrap_or_default() + &pace.unwrap_or_default())
        }
    }
}

fn table(thresholds: &[Threshold], origins: &Origins) -> String {
    let mut table = Table::new("SIGNAL  BELOW>  GRACE PERIOD>  MIN RECLAIM>  FROM");
    for threshold in thresholds {
        let grace = (!threshold.is_hard()).then(|| format!("{:?}", threshold.grace_period));
        let note = match is_containerfs(threshold) {
            true => IN_NO_LAYOUT,
            false => "",
        };
        table.row([
            threshold.signal.to_string(),
            threshold.value.to_string(),
            or_dash(grace),
            or_dash(threshold.min_reclaim.as_ref()),
            format!("{}{note}", origins.explain(threshold)),
        ]);
    }
    table.render()
}

/// Note on a threshold of containerfs: which layout the disks have is not looked at here.
const IN_NO_LAYOUT: &str =
    "; ignored in the kubelet's layouts: containerfs follows nodefs or imagefs";

fn is_containerfs(threshold: &Threshold) -> bool {
    let of = std::slice::from_ref(threshold);
    Layout::default().ignored(of).next().is_some()
}

/// Explanation of when pods go, for people: programs know what they want.
fn pace(config: &Config) -> String {
    match config.mode {
        Mode::Evictd => {
            let has_turn = config.eviction.thresholds.iter().any(|t| {
                t.is_hard()
                    && matches!(t.signal.resource(), Resource::Memory | Resource::Pids)
                    && config.follows_kubelet(t)
                    // The capacity, which may cut a step to nothing, is not read here.
                    && !matches!(t.value, ThresholdValue::Raised(_))
            });
            let turn = if has_turn { KUBELETS_TURN } else { "" };
            format!("{PACE}{turn}{URGENCY}")
        }
        Mode::Kubelet => KUBELET_PACE.to_owned(),
    }
}

const PACE: &str = "
A met hard threshold evicts one pod, and the next one ten seconds later. That of memory or of process ids must have been met for ten seconds.
";
const KUBELETS_TURN: &str = "\
In a cluster both times are 14 seconds for memory and process ids where the threshold is the kubelet's own and no step raises it: the kubelet has its turn.
";
const URGENCY: &str = "\
It is urgent when what cannot be given back will be used up within 10.4 s, at the growth that is seen.
Then pods are evicted at once: as many as are needed to last until the memory of the first is back, usually one.
Page cache alone is never urgent, nor is what swap can take.
A threshold that is met as it comes into force is logged and evicts in the same way.
";
const KUBELET_PACE: &str = "
A hard threshold of memory evicts one pod when it has been met for ten seconds, and the next one ten seconds later, when the last has ended.
It is urgent when what cannot be given back will be used up within 10.4 s, at the growth that is seen.
Then one pod is evicted at once, and the next one when it has ended. Page cache alone is never urgent, nor is what swap can take.
All other thresholds evict one pod in ten seconds from the first look that finds them met, and none for 30 s while the last has not ended.
A threshold that is met as it comes into force is logged and evicts in the same way.
";

impl ThresholdJson {
    fn new(threshold: &Threshold, origins: &Origins) -> Self {
        let grace = threshold.grace_period;
        let origin = origins.of(threshold);
        let is_raised = matches!(threshold.value, ThresholdValue::Raised(_));
        Self {
            signal: threshold.signal.as_str(),
            value: (&threshold.value).into(),
            grace_period_seconds: if grace.subsec_nanos() == 0 {
                Seconds::Whole(grace.as_secs())
            } else {
                Seconds::Fraction(grace.as_secs_f64())
            },
            min_reclaim: threshold.min_reclaim.as_ref().map(ValueJson::from),
            from: (origin == Origin::Fallback || is_raised).then(|| origin.as_str()),
        }
    }
}

impl From<&ThresholdValue> for ValueJson {
    fn from(value: &ThresholdValue) -> Self {
        match value {
            ThresholdValue::Quantity(quantity) => Self::Quantity(quantity.value()),
            ThresholdValue::Percentage(share) => Self::Percentage(*share),
            ThresholdValue::Raised(raised) => Self::Raised {
                value: Box::new((&raised.base).into()),
                by: Box::new((&raised.step).into()),
                at_most: raised.most,
            },
        }
    }
}
