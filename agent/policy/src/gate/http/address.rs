//! Where a gate's question goes, and where it may not be sent.

use std::net::{IpAddr, SocketAddr};

use http::Uri;
use tokio::net::TcpStream;

use super::{ProbeError, Scheme};

pub(super) fn bad_host(host: &str, reason: &str) -> ProbeError {
    ProbeError::Address {
        host: host.to_owned(),
        reason: reason.to_owned(),
    }
}

/// A host, with the port if it names one itself: servers tell of each other as `tcp://host:port`.
pub(super) fn endpoint(text: &str, port: u16) -> Result<(&str, u16), ProbeError> {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let rest = rest.trim_end_matches('/');
    let (host, port) = if rest.parse::<IpAddr>().is_ok() {
        (rest, port)
    } else if let Some((host, own)) = rest.rsplit_once(':') {
        let own = own
            .parse()
            .map_err(|_| bad_host(text, "is not the name of a host"))?;
        (host.trim_start_matches('[').trim_end_matches(']'), own)
    } else {
        (rest, port)
    };
    if host.is_empty() {
        return Err(bad_host("host", "is empty: the pod has no IP yet"));
    }
    let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if host.parse::<IpAddr>().is_ok() || host.bytes().all(named) {
        return Ok((host, port));
    }
    Err(bad_host(text, "is not the name of a host"))
}

/// The next address: the scheme stays, so that a redirect cannot take TLS away.
pub(super) fn redirected(
    from: &Uri,
    location: &http::HeaderValue,
    scheme: Scheme,
) -> Result<Uri, ProbeError> {
    let lost =
        || ProbeError::Exchange("it redirects to an address that cannot be reached".to_owned());
    let text = location.to_str().map_err(|_| lost())?;
    let to: Uri = text.parse().map_err(|_| lost())?;
    let mut parts = to.into_parts();
    let wanted = match scheme {
        Scheme::Http => http::uri::Scheme::HTTP,
        Scheme::Https => http::uri::Scheme::HTTPS,
    };
    match &parts.scheme {
        Some(scheme) if *scheme != wanted => return Err(lost()),
        Some(_) => {}
        None => {
            parts.scheme = Some(wanted);
            parts.authority = from.authority().cloned();
        }
    }
    Uri::from_parts(parts).map_err(|_| lost())
}

pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, ProbeError> {
    let addresses = tokio::net::lookup_host((host, port)).await;
    let addresses = addresses.map_err(|e| bad_host(host, &e.to_string()))?;
    let mut last = bad_host(host, "has no address that may be asked");
    for address in addresses.filter(may_be_asked) {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(e) => last = bad_host(host, &e.to_string()),
        }
    }
    Err(last)
}

/// Link-local addresses serve the machine's own secrets in most clouds; the others lead nowhere.
fn may_be_asked(address: &SocketAddr) -> bool {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_link_local() || ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => !(ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_with_or_without_a_port() {
        for (text, expected) in [
            ("10.0.0.7", Some(("10.0.0.7", 80))),
            (
                "db-agnt-1.db-int.shop.svc",
                Some(("db-agnt-1.db-int.shop.svc", 80)),
            ),
            (
                "tcp://db-agnt-1.db-int.shop.svc:8529",
                Some(("db-agnt-1.db-int.shop.svc", 8529)),
            ),
            ("ssl://[fd00::7]:8529/", Some(("fd00::7", 8529))),
            ("fd00::7", Some(("fd00::7", 80))),
            ("", None),
            ("a/b", None),
            ("user@host", None),
            ("host:port", None),
            ("tcp://:8529", None),
            ("host name", None),
        ] {
            assert_eq!(endpoint(text, 80).ok(), expected, "{text}");
        }
    }
}
