//! The scripted API server against the recordings of a real one.

use evictd_tests::{apiserver::pod, prelude::*, scrape};

fn recording(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("recordings/api/{name}.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// One exchange over a plain socket, without the client that the agent uses.
fn exchange(server: &ApiServer, request: &Value, body: &Value) -> (u64, Value) {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let [method, path] = ["method", "path"].map(|field| request[field].as_str().unwrap());
    let kind = request["contentType"].as_str();
    let kind = kind.unwrap_or("application/json");
    let headers = format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
    let (address, line) = (server.address().to_string(), format!("{method} {path}"));
    let text = scrape::ask(&address, &line, &headers, &body).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, serde_json::from_str(body).unwrap_or_default())
}

/// Every refusal has the status, the reason, the causes and the details that the real server gave.
#[test]
fn refusals_are_the_recorded_ones() {
    let server = ApiServer::start().unwrap();
    {
        let mut state = server.state();
        for (name, uid) in [
            ("free-1", "643b88bf-5ab1-450b-a239-7f9bcca4b4d8"),
            ("free-2", "53a44280-ff00-416c-a66d-742c0ad41a05"),
            ("web-1", "00000000-0000-0000-0000-000000000001"),
        ] {
            state.put_pod(pod(name, uid, "Burstable", 0, None));
        }
        state.budgets.insert("web-1".into());
    }
    for name in [
        "delete-not-found",
        "delete-uid-conflict",
        "eviction-uid-mismatch",
        "eviction-blocked-by-pdb",
        "node-taint-conflict",
        "eviction-created",
    ] {
        let recorded = recording(name);
        let request = &recorded["request"];
        let (code, body) = exchange(&server, request, &request["body"]);
        let expected = &recorded["response"];
        assert_eq!(code, expected["status"], "{name}");
        assert_eq!(body, expected["body"], "{name}");
    }
}

/// A list, a watch from there with a change, and a watch from too long ago.
#[test]
fn lists_and_events_have_the_recorded_form() {
    let server = ApiServer::start().unwrap();
    let free = pod("free-1", "u1", "Burstable", 0, None);
    server.state().put_pod(free);
    let recorded = recording("pods-list-by-node");
    let (code, list) = exchange(&server, &recorded["request"], &Value::Null);
    assert_eq!(code, 200);
    for field in ["kind", "apiVersion"] {
        assert_eq!(list[field], recorded["response"]["body"][field]);
    }
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert!(list["metadata"]["resourceVersion"].is_string());

    let event = recording("event-created");
    let request = &event["request"];
    let (code, made) = exchange(&server, request, &request["body"]);
    assert_eq!((code, &made["note"]), (201, &request["body"]["note"]));
    let refused = recording("event-refused");
    let request = &refused["request"];
    let (code, answer) = exchange(&server, request, &request["body"]);
    assert_eq!(code, refused["response"]["status"]);
    assert_eq!(answer["reason"], refused["response"]["body"]["reason"]);

    let review = recording("selfsubjectaccessreview");
    let (code, answer) = exchange(&server, &review["request"], &review["request"]["body"]);
    assert_eq!((code, &answer["status"]["allowed"]), (201, &true.into()));
    assert_eq!(server.count("POST", "selfsubjectaccessreviews"), 1);
}
