//! The address that a gate asks, and the addresses that it may not ask.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _},
    sync::{Arc, LazyLock, Mutex, Weak},
};

use evictd_sys::mutex::locked;
use ipnet::{IpNet, Ipv4Net};
use tokio::{net::TcpStream, task::JoinSet};

use super::{Hosts, ProbeError};

/// Addresses at which a cloud serves a machine's own credentials, besides link-local ones: AWS (IPv6, and the EKS Pod
/// Identity agent), Azure's platform, Alibaba Cloud, Oracle Cloud, Google Cloud (IPv6).
const METADATA: [&str; 6] = [
    "fd00:ec2::254/128",
    "fd00:ec2::23/128",
    "168.63.129.16/32",
    "100.100.100.200/32",
    "192.0.0.192/32",
    "fd20:ce::254/128",
];

static METADATA_NETWORKS: LazyLock<Vec<IpNet>> =
    LazyLock::new(|| METADATA.iter().filter_map(|n| n.parse().ok()).collect());

/// Addresses of the cluster itself, which a gate reaches only where its policy names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAddresses {
    /// The API server's addresses in the agent's own configuration: gates may not ask any port of them.
    pub api_server: Vec<IpAddr>,
    /// The API server's endpoints: gates may not ask these ports. Pods in the host's network have the same addresses.
    pub endpoints: Vec<SocketAddr>,
    /// The networks of ClusterIPs.
    pub services: Vec<IpNet>,
    /// Guessed networks of ClusterIPs, where the agent cannot read them from the cluster. Addresses of pods may lie in
    /// them.
    pub assumed_services: Vec<IpNet>,
}

/// The addresses that a gate may ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter<'a> {
    pub cluster: &'a ClusterAddresses,
    /// Addresses that the policy names may be asked.
    pub hosts: Option<&'a Hosts>,
    /// `clusterIPs`.
    pub cluster_ips: bool,
    /// Whether the gate asks the pod itself, at the IP in the pod's status.
    pub is_pods_own: bool,
}

impl Filter<'_> {
    /// Why the gate may not ask an address.
    fn refusal(&self, server: SocketAddr) -> Option<&'static str> {
        let address = server.ip().to_canonical();
        let leads_nowhere = match address {
            IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
        };
        if leads_nowhere {
            return Some("is no address of one server");
        }
        if self.hosts.is_some_and(|hosts| hosts.names_address(address)) {
            return None;
        }
        let is_link_local = match address {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        let is_in = |networks: &[IpNet]| networks.iter().any(|n| n.contains(&address));
        if address.is_loopback() {
            Some("is a loopback address")
        } else if is_link_local {
            Some("is a link-local address")
        } else if is_in(&METADATA_NETWORKS) {
            Some("is a cloud's metadata address")
        } else if self.cluster.api_server.contains(&address)
            || self
                .cluster
                .endpoints
                .contains(&SocketAddr::new(address, server.port()))
        {
            Some("is the API server's address")
        } else if !self.cluster_ips
            && (is_in(&self.cluster.services)
                || !self.is_pods_own && is_in(&self.cluster.assumed_services))
        {
            Some("is a ClusterIP, and the gate has no clusterIPs: true")
        } else {
            None
        }
    }
}

/// The default network of ClusterIPs of kubeadm and Talos.
const DEFAULT_SERVICES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 12);

impl ClusterAddresses {
    /// The network of ClusterIPs that the address of the Service `kubernetes` suggests: 10.96.0.0/12, its /16, or its
    /// /112. Other distributions' networks are no larger by default.
    pub fn services_around(kubernetes: IpAddr) -> IpNet {
        let (address, length) = match kubernetes.to_canonical() {
            IpAddr::V4(ip) if DEFAULT_SERVICES.contains(&ip) => return DEFAULT_SERVICES.into(),
            IpAddr::V4(ip) => {
                let [a, b, ..] = ip.octets();
                (IpAddr::V4(Ipv4Addr::new(a, b, 0, 0)), 16)
            }
            IpAddr::V6(ip) => {
                let mut octets = ip.octets();
                octets[14..].fill(0);
                (IpAddr::V6(Ipv6Addr::from(octets)), 112)
            }
        };
        IpNet::new_assert(address, length)
    }
}

pub(super) fn bad_host(host: &str, reason: &str) -> ProbeError {
    ProbeError::Address {
        host: host.to_owned(),
        reason: reason.to_owned(),
    }
}

/// The host of a text that may be a URL, because servers name each other as `tcp://host:port`. The port, if any, must
/// be the gate's.
pub(super) fn endpoint(text: &str, port: u16) -> Result<&str, ProbeError> {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let rest = rest.trim_end_matches('/');
    let host = if rest.parse::<IpAddr>().is_ok() {
        rest
    } else if let Some((host, own)) = rest.rsplit_once(':') {
        match own.parse::<u16>() {
            Ok(own) if own == port => {}
            Ok(_) => return Err(bad_host(text, "has another port than the gate")),
            Err(_) => return Err(bad_host(text, "is not the name of a host")),
        }
        host.trim_start_matches('[').trim_end_matches(']')
    } else {
        rest
    };
    if host.is_empty() {
        return Err(bad_host("host", "is empty: the pod has no IP yet"));
    }
    let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if host.parse::<IpAddr>().is_ok() || host.bytes().all(named) {
        return Ok(host);
    }
    Err(bad_host(text, "is not the name of a host"))
}

/// Looks a host up once and connects to an address that has passed the filter, so that the name cannot lead elsewhere
/// later.
pub(super) async fn connect(
    host: &str,
    port: u16,
    filter: Filter<'_>,
) -> Result<TcpStream, ProbeError> {
    let resolve = move |name: &str| Ok((name, port).to_socket_addrs()?.collect());
    let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => look_up(host, resolve)
            .await
            .map_err(|e| bad_host(host, &e.to_string()))?,
    };
    let mut last = bad_host(host, "has no address");
    for address in addresses {
        if let Some(reason) = filter.refusal(address) {
            let reason = format!(
                "{} {reason}: it is not asked unless hosts names it",
                address.ip()
            );
            last = bad_host(host, &reason);
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(e) => last = bad_host(host, &e.to_string()),
        }
    }
    Err(last)
}

/// The lookups of each name, which follow one another: a name server that hangs keeps no thread from other names.
static LOOKUPS: Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// Looks a name up on a thread that may wait. A caller that waits no longer takes its lookup with it, unless that has begun.
async fn look_up<T: Send + 'static>(
    name: &str,
    resolve: impl FnOnce(&str) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let turns = {
        let mut all = locked(&LOOKUPS);
        all.retain(|_, turns| turns.strong_count() > 0);
        let known = all.get(name).and_then(Weak::upgrade);
        let turns = known.unwrap_or_default();
        all.insert(name.to_owned(), Arc::downgrade(&turns));
        turns
    };
    let turn = turns.lock_owned().await;
    let name = name.to_owned();
    // A task of the set that has not begun when the set goes does not begin any more.
    let mut lookup = JoinSet::new();
    lookup.spawn_blocking(move || {
        let _turn = turn;
        resolve(&name)
    });
    match lookup.join_next().await {
        Some(Ok(found)) => found,
        Some(Err(error)) => Err(io::Error::other(error)),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicU32, Ordering},
            mpsc,
        },
        time::Duration,
    };

    use super::*;

    #[test]
    fn a_name_that_is_looked_up_for_long_holds_up_no_other() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(2)
            .build()
            .unwrap();
        let begun = Arc::new(AtomicU32::new(0));
        let (end, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        let asked = |name: &'static str| {
            let (begun, hangs) = (Arc::clone(&begun), Arc::clone(&hangs));
            let resolve = move |name: &str| {
                if name == "hangs" {
                    begun.fetch_add(1, Ordering::Relaxed);
                    let _ = hangs.lock().unwrap().recv();
                }
                Ok(name.len())
            };
            tokio::time::timeout(Duration::from_millis(20), look_up(name, resolve))
        };
        runtime.block_on(async {
            let all = (0..50).map(|_| asked("hangs"));
            let answers = futures::future::join_all(all).await;
            assert!(answers.iter().all(Result::is_err));
            assert!(asked("hangs").await.is_err());
            let other = tokio::time::timeout(Duration::from_secs(60), async {
                look_up("other", |name: &str| Ok(name.len())).await.unwrap()
            });
            assert_eq!(other.await.unwrap(), 5);
        });
        drop(end);
        // Waits for what has begun.
        drop(runtime);
        assert_eq!(begun.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_endpoint_is_a_host_with_or_without_the_gates_port() {
        for (text, expected) in [
            ("10.0.0.7", Some("10.0.0.7")),
            (
                "db-agnt-1.db-int.shop.svc",
                Some("db-agnt-1.db-int.shop.svc"),
            ),
            (
                "tcp://db-agnt-1.db-int.shop.svc:8529",
                Some("db-agnt-1.db-int.shop.svc"),
            ),
            ("ssl://[fd00::7]:8529/", Some("fd00::7")),
            ("fd00::7", Some("fd00::7")),
            ("db.shop.svc:22", None),
            ("", None),
            ("a/b", None),
            ("user@host", None),
            ("host:port", None),
            ("tcp://:8529", None),
            ("host name", None),
        ] {
            assert_eq!(endpoint(text, 8529).ok(), expected, "{text}");
        }
    }

    #[test]
    fn machines_and_clusters_own_addresses_are_refused() {
        let kubernetes: IpAddr = "10.96.0.1".parse().expect("an address");
        let cluster = ClusterAddresses {
            api_server: vec![kubernetes, "192.168.7.1".parse().expect("an address")],
            endpoints: vec!["192.168.7.2:6443".parse().expect("an address")],
            services: Vec::new(),
            assumed_services: vec![ClusterAddresses::services_around(kubernetes)],
        };
        let refusal_of = |hosts: Option<&Hosts>, cluster_ips, is_pods_own, address: &str, port| {
            let filter = Filter {
                cluster: &cluster,
                hosts,
                cluster_ips,
                is_pods_own,
            };
            let address = address.parse().expect("an address");
            filter.refusal(SocketAddr::new(address, port))
        };
        let refusal = |hosts: Option<&Hosts>, cluster_ips, address: &str| {
            refusal_of(hosts, cluster_ips, false, address, 8529)
        };
        // A pod in the host's network beside the API server; then a pod whose address lies in the guessed network.
        assert_eq!(refusal(None, false, "192.168.7.2"), None);
        let server = refusal_of(None, false, true, "192.168.7.2", 6443);
        assert!(server.is_some_and(|r| r.contains("API server")));
        assert_eq!(refusal_of(None, false, true, "10.97.0.10", 8529), None);
        for (address, reason) in [
            ("127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.9", "loopback"),
            ("169.254.169.254", "link-local"),
            ("169.254.170.23", "link-local"),
            ("::ffff:169.254.1.1", "link-local"),
            ("fe80::1", "link-local"),
            ("fd00:ec2::254", "metadata"),
            ("168.63.129.16", "metadata"),
            ("100.100.100.200", "metadata"),
            ("192.168.7.1", "API server"),
            ("10.96.0.1", "API server"),
            ("10.96.200.3", "ClusterIP"),
            ("10.97.0.10", "ClusterIP"),
            ("10.111.255.254", "ClusterIP"),
            ("0.0.0.0", "no address"),
            ("ff02::1", "no address"),
        ] {
            let refused = refusal(None, false, address);
            assert!(
                refused.is_some_and(|r| r.contains(reason)),
                "{address}: {refused:?}"
            );
        }
        assert_eq!(refusal(None, false, "10.244.1.7"), None, "a pod's");
        assert_eq!(refusal(None, false, "10.112.0.1"), None, "beyond them");
        assert_eq!(refusal(None, true, "10.96.200.3"), None);
        assert!(
            refusal(None, true, "10.96.0.1").is_some(),
            "not the API server's"
        );
        let mut fields = evictd_config::decode::ObjectDecoder::open(
            "",
            serde_json::json!({"hosts": ["127.0.0.0/8", "10.96.0.1", "0.0.0.0"]}),
        )
        .expect("a map");
        let hosts = Hosts::take(&mut fields).expect("a list");
        assert_eq!(refusal(hosts.as_ref(), false, "127.0.0.1"), None, "named");
        assert_eq!(refusal(hosts.as_ref(), false, "10.96.0.1"), None, "named");
        assert!(refusal(hosts.as_ref(), false, "0.0.0.0").is_some());
        assert!(refusal(hosts.as_ref(), false, "10.96.0.2").is_some());
        for (kubernetes, network) in [
            ("fd00:10:96::1", "fd00:10:96::/112"),
            ("10.43.0.1", "10.43.0.0/16"),
            ("10.100.0.1", "10.96.0.0/12"),
            ("172.20.0.1", "172.20.0.0/16"),
        ] {
            let kubernetes = kubernetes.parse().expect("an address");
            let around = ClusterAddresses::services_around(kubernetes);
            assert_eq!(around.to_string(), network);
        }
    }
}
