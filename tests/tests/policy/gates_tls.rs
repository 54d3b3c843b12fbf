//! Gates that ask over TLS: the right authority, a wrong one, and a server that is asked without TLS.

use evictd_policy::gate::Secrets;
use evictd_tests::{
    policy_fixture::{PolicyFixture, gated},
    prelude::*,
    scripted::Scripted,
    tls::Authority,
};

fn keep(name: &str, server: &Scripted, mut http: Value, secrets: &Secrets) -> PolicyFixture {
    let pod = Pod {
        name: "db".into(),
        ip: server.ip(),
        ..Pod::default()
    };
    http["path"] = "/health".into();
    let policy = gated(json!({"http": http}));
    PolicyFixture::new(name, vec![pod], vec![policy], secrets.clone())
}

// R38
#[test]
fn the_certificate_must_be_signed_by_the_policys_authority() {
    let (mine, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let server = Scripted::start_tls(61, &mine).unwrap();
    server.json("/health", json!({"ok": true}));
    let files = tempfile::tempdir().unwrap();
    fs::write(files.path().join("mine.crt"), mine.pem()).unwrap();
    fs::write(files.path().join("other.crt"), other.pem()).unwrap();
    fs::write(files.path().join("token"), "s3cret\n").unwrap();
    let secrets = Secrets::new(Some(files.path().to_owned()));
    let error = |kept: &PolicyFixture| kept.explain("db").rules[0].gates[0].error.clone();

    let https =
        |ca: &str| json!({"scheme": "https", "port": server.port(), "ca": ca, "token": "token"});
    let kept = as_root!(keep("gatetls", &server, https("mine.crt"), &secrets));
    kept.wait("it is trusted", |k| k.may_go("db"));
    let asked = server.asked();
    assert!(
        asked
            .iter()
            .all(|a| a.authorization.as_deref() == Some("Bearer s3cret"))
    );
    drop(kept);

    let before = server.asked().len();
    let kept = keep("gateca", &server, https("other.crt"), &secrets);
    kept.wait("the reason is shown", |k| {
        error(k).is_some_and(|e| e.to_lowercase().contains("certificate"))
    });
    assert!(!kept.may_go("db"));
    assert_eq!(
        server.asked().len(),
        before,
        "another server hears no token"
    );
    drop(kept);

    let skip = json!({"scheme": "https", "port": server.port(), "insecureSkipVerify": true});
    let kept = keep("gateskip", &server, skip, &secrets);
    kept.wait("any certificate is good enough", |k| k.may_go("db"));
    drop(kept);

    let plain = json!({"port": server.port()});
    let kept = keep("gateplain", &server, plain, &secrets);
    kept.wait("TLS answers no plain question", |k| error(k).is_some());
    assert!(!kept.may_go("db"));
}
