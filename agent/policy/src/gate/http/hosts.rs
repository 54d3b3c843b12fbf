//! `hosts`: the servers that a gate may ask. Pods and servers can influence `host` and `serverName`, but not this list.

use std::net::IpAddr;

use evictd_config::{ConfigError, decode::ObjectDecoder};
use ipnet::IpNet;

/// Most entries of the list.
const MAX_HOSTS: usize = 16;
/// Placeholder for the pod's namespace.
const NAMESPACE: &str = "$(namespace)";

/// Names and networks in a policy's `hosts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    names: Vec<String>,
    networks: Vec<IpNet>,
}

impl Hosts {
    /// Takes the field `hosts`; `None` if the field is absent.
    pub(super) fn take(fields: &mut ObjectDecoder) -> Result<Option<Self>, ConfigError> {
        let path = fields.path_of("hosts");
        let Some(texts) = fields.texts("hosts")? else {
            return Ok(None);
        };
        if texts.is_empty() || texts.len() > MAX_HOSTS {
            let reason = format!("must have between 1 and {MAX_HOSTS} items");
            return Err(ConfigError::value(path, &texts.len().into(), reason));
        }
        let mut hosts = Self::default();
        for (i, text) in texts.into_iter().enumerate() {
            if let Some(network) = network(&text) {
                hosts.networks.push(network);
            } else if is_pattern(&text) {
                hosts.names.push(text.to_ascii_lowercase());
            } else {
                let reason = "must be a name, a name after *., an address or a network; $(namespace) stands for the \
                    pod's namespace";
                return Err(ConfigError::text(format!("{path}[{i}]"), &text, reason));
            }
        }
        Ok(Some(hosts))
    }

    /// Whether a host, given as a name or an address, may be asked about a pod of this namespace.
    pub(super) fn allow(&self, host: &str, namespace: &str) -> bool {
        if let Ok(address) = host.parse() {
            return self.names_address(address);
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        self.names.iter().any(|pattern| {
            let pattern = pattern.replace(NAMESPACE, namespace);
            match pattern.strip_prefix('*') {
                Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
                None => host == pattern,
            }
        })
    }

    /// Whether the list has this address, or a network with it.
    pub(super) fn names_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|n| n.contains(&address))
    }
}

fn network(text: &str) -> Option<IpNet> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address.or_else(|_| text.parse()).ok()
}

/// Whether a text is a DNS name or `*.` before one. At least two labels must follow `*`: `*.svc` would match every
/// Service.
fn is_pattern(text: &str) -> bool {
    let name = text.replace(NAMESPACE, "namespace");
    let (is_wild, name) = match name.strip_prefix("*.") {
        Some(rest) => (true, rest),
        None => (false, name.as_str()),
    };
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(good);
    let is_address = name.rsplit('.').next().is_some_and(|last| {
        // 10.0.0.256 is neither an address nor a name.
        last.bytes().all(|b| b.is_ascii_digit())
    });
    text.len() <= 253
        && !is_address
        && name.split('.').all(is_label)
        && (!is_wild || name.contains('.'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(hosts: Value) -> Result<Option<Hosts>, String> {
        let mut fields = ObjectDecoder::open("http", json!({ "hosts": hosts })).expect("a map");
        Hosts::take(&mut fields).map_err(|e| e.to_string())
    }

    #[test]
    fn a_name_is_compared_label_by_label_and_an_address_by_its_network() {
        let hosts = read(json!([
            "*.$(namespace).svc",
            "db.example.org",
            "10.1.0.0/16",
            "fd00::7"
        ]));
        let hosts = hosts.expect("a list").expect("it is there");
        for (host, expected) in [
            ("a.shop.svc", true),
            ("A.b.Shop.SVC.", true),
            ("shop.svc", false),
            ("a.other.svc", false),
            ("a.shop.svc.evil.org", false),
            ("ashop.svc", false),
            ("db.example.org", true),
            ("x.db.example.org", false),
            ("10.1.2.3", true),
            ("10.2.2.3", false),
            ("::ffff:10.1.2.3", true),
            ("fd00::7", true),
            ("fd00::8", false),
        ] {
            assert_eq!(hosts.allow(host, "shop"), expected, "{host}");
        }
    }

    #[test]
    fn every_mistake_names_its_item() {
        for (hosts, expected) in [
            (json!([]), "http.hosts: 0: must have between 1 and 16"),
            (json!(["*"]), "http.hosts[0]: \"*\": must be a name"),
            (json!(["*.svc"]), "http.hosts[0]: \"*.svc\": must be a name"),
            (
                json!(["a.b", "10.0.0.256"]),
                "http.hosts[1]: \"10.0.0.256\": must be",
            ),
            (
                json!(["10.0.0.0/33"]),
                "http.hosts[0]: \"10.0.0.0/33\": must be",
            ),
            (json!(["a/b"]), "http.hosts[0]: \"a/b\": must be"),
        ] {
            let error = read(hosts).expect_err(expected);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
