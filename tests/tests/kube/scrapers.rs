//! Metrics over TLS, for scrapers that the API server lets in.

use std::net::SocketAddr;

use evictd_tests::{prelude::*, tls::Authority};

/// A node whose agent serves metrics with a certificate of an authority.
struct Served {
    node: ClusterNode,
    authority: Authority,
    address: SocketAddr,
}

impl Served {
    fn new(name: &str) -> Self {
        let mut node = ClusterNode::new(name, 256).unwrap();
        let (authority, address) = (Authority::new().unwrap(), free_address().unwrap());
        node.config["metricsAddress"] = json!(address);
        let [certificate, key] = ["tls.crt", "tls.key"].map(|file| node.dir().join(file));
        node.config["metricsTls"] =
            json!({ "certificateFile": certificate, "privateKeyFile": key });
        let address = address.parse().unwrap();
        let served = Self {
            node,
            authority,
            address,
        };
        served.renew(&served.authority);
        served
    }

    /// The server gets a certificate of this authority.
    fn renew(&self, authority: &Authority) {
        let (certificate, key) = authority.server_pem(&["127.0.0.1"]).unwrap();
        let write = |file: &str, text| fs::write(self.node.dir().join(file), text).unwrap();
        write("tls.key", key);
        write("tls.crt", certificate);
    }

    /// What is answered to a request for a path with this token.
    fn get(&self, path: &str, token: Option<&str>) -> String {
        let mut stream = self.authority.connect(self.address).unwrap();
        let token = token.map_or_else(String::new, |t| format!("Authorization: Bearer {t}\r\n"));
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{token}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn status(&self, token: Option<&str>) -> String {
        let answer = self.get("/metrics", token);
        let shows = answer.contains("evictd_build_info");
        let status = answer.split(' ').nth(1).unwrap().to_owned();
        assert_eq!(shows, status == "200", "{answer}");
        status
    }

    fn reviews(&self) -> [usize; 2] {
        ["/tokenreviews", "/subjectaccessreviews"].map(|path| self.node.server.count("POST", path))
    }
}

// R48
#[test]
fn metrics_are_read_by_those_who_may() {
    let served = as_root!(Served::new("scrapers"));
    let knows = |token: &str, user: &str, may| {
        let scrapers = &mut served.node.server.state().scrapers;
        scrapers.insert(token.to_owned(), (user.to_owned(), may));
    };
    let prometheus = "system:serviceaccount:monitoring:prometheus";
    knows("prometheus-token", prometheus, true);
    knows("tenant-token", "system:serviceaccount:shop:default", false);
    let _agent = served.node.start().unwrap();
    assert_eq!(served.status(None), "401");
    assert_eq!(served.status(Some("forged")), "401");
    assert_eq!(served.status(Some("tenant-token")), "403");
    assert_eq!(served.status(Some("prometheus-token")), "200");
    assert_eq!(served.reviews(), [3, 2]);
    // What the server has said holds for a while.
    for _ in 0..20 {
        assert_eq!(served.status(Some("prometheus-token")), "200");
        assert_eq!(served.status(Some("tenant-token")), "403");
    }
    assert_eq!(served.reviews(), [3, 2]);
    // It is all that is served without a token, and nothing without TLS.
    assert!(served.get("/healthz", None).ends_with("ok\n"));
    let plain = metrics(&served.address.to_string()).unwrap_or_default();
    assert!(!plain.contains("evictd_"), "{plain}");
}

/// No client is let in without an answer, and one that waits for it holds up no other.
#[test]
fn without_an_answer_of_the_api_server_no_metrics_are_shown() {
    let served = as_root!(Served::new("unreviewed"));
    let scrapers = [("known".to_owned(), ("prometheus".to_owned(), true))];
    served.node.server.state().scrapers.extend(scrapers);
    let _agent = served.node.start().unwrap();
    assert_eq!(served.status(Some("known")), "200");
    let fails = |what| served.node.server.fails("POST", "/tokenreviews", 1, what);
    for code in [500, 403] {
        fails(InjectedFault::Status(code));
        let token = format!("{}", served.reviews()[0]);
        assert_eq!(served.status(Some(&token)), "503");
    }
    fails(InjectedFault::Hang);
    let mut waits = served.authority.connect(served.address).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nAuthorization: Bearer hangs\r\n\r\n";
    waits.write_all(request.as_bytes()).unwrap();
    for _ in 0..20 {
        assert_eq!(served.status(Some("known")), "200");
    }
    // Its review takes no longer than any request, and it is told, or its time is over.
    let mut text = String::new();
    let _ = waits.read_to_string(&mut text);
    let is_refused = text.starts_with("HTTP/1.1 503");
    assert!(is_refused || text.is_empty(), "{text}");
}

/// A certificate that was renewed is taken without a restart; one that cannot be used changes nothing.
#[test]
fn a_renewed_certificate_is_taken() {
    let mut served = as_root!(Served::new("renewed"));
    served.node.config["metricsTls"]["authorization"] = json!(false);
    let agent = served.node.start().unwrap();
    assert_eq!(served.status(None), "200");
    fs::write(served.node.dir().join("tls.crt"), "nothing").unwrap();
    let said = || {
        drop(served.authority.connect(served.address).unwrap());
        agent.log().contains("metricsTls.certificateFile: ")
    };
    assert!(until(SOON, said));
    let next = Authority::new().unwrap();
    served.renew(&next);
    assert!(until(SOON, || next.connect(served.address).is_ok()));
    served.authority = next;
    assert_eq!(served.status(None), "200");
}

/// Without files the agent has a certificate of its own.
#[test]
fn without_files_the_certificate_is_the_agents_own() {
    let mut served = as_root!(Served::new("selfsigned"));
    served.node.config["metricsTls"] = json!({});
    let _agent = served.node.start().unwrap();
    let refused = served.authority.connect(served.address).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("invalid peer certificate"), "{refused}");
}

/// Bad input: one line that names the field, exit code 2.
#[test]
fn what_cannot_be_used_is_named() {
    let served = as_root!(Served::new("badtls"));
    let dir = served.node.dir();
    let (_, other) = served.authority.server_pem(&["127.0.0.1"]).unwrap();
    fs::write(dir.join("other.key"), other).unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    let file = |name: &str| json!(dir.join(name));
    let both = |certificate: &str, key: &str| json!({ "certificateFile": file(certificate), "privateKeyFile": file(key) });
    let alone = |field: &str, name: &str| json!({ field: file(name) });
    let field = |name: &str| format!("metricsTls.{name}: ");
    let (certificate, key) = (field("certificateFile"), field("privateKeyFile"));
    let cases = [
        (both("nowhere", "tls.key"), &*certificate),
        (both("empty", "tls.key"), "has no certificate"),
        (both("tls.crt", "nowhere"), &key),
        (both("tls.crt", "other.key"), &key),
        (alone("certificateFile", "tls.crt"), &certificate),
        (alone("privateKeyFile", "tls.key"), &key),
        (alone("certFile", "tls.crt"), &field("certFile")),
    ];
    for (tls, expected) in cases {
        let mut config = served.node.config.clone();
        config["metricsTls"] = tls;
        let path = dir.join("bad.json");
        fs::write(&path, config.to_string()).unwrap();
        let error = agent::refused(&["run"], &[("--config", &path)]);
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
