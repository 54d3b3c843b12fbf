//! The agent's test of the admission policies, against the scripted API server.

use evictd_kube::admission;
use evictd_tests::prelude::*;

const SOON: Duration = Duration::from_millis(20);
const NEVER: Duration = Duration::from_secs(3600);

/// The test goes on for as long as no policy refuses: so many requests came and so many of them were counted within a moment, and
/// whether it has ended.
fn tested(faults: Vec<InjectedFault>, again: Duration) -> (usize, u64, bool) {
    let server = ApiServer::start().unwrap();
    for what in faults {
        server.fails("POST", "/events", 1, what);
    }
    let runtime = current_thread().unwrap();
    let (connection, ended) = runtime.block_on(async {
        let connection = server.client().await;
        let test = admission::check(&connection, &[SOON, SOON], again);
        let ended = tokio::time::timeout(Duration::from_secs(2), test).await;
        (Arc::clone(&connection), ended.is_ok())
    });
    let state = server.state();
    let made = state.all_of(Collection::Events).next();
    assert!(made.is_none(), "nothing comes of it");
    for asked in state.all("POST", "/events") {
        assert_eq!(asked.query, "dryRun=All");
        assert_eq!(asked.body["reportingInstance"], "another/node");
    }
    assert_eq!(connection.counters.forbidden.get(), 0);
    let counted = connection.counters.node_restriction_not_enforced.get();
    (state.requests.len(), counted, ended)
}

#[test]
fn a_token_that_no_policy_holds_is_counted() {
    // Policies that come a moment after the agents have three questions' time.
    assert_eq!(tested(vec![], NEVER), (3, 1, false));
}

#[test]
fn a_policy_that_refuses_ends_the_test() {
    let refusal = || InjectedFault::Status(403);
    assert_eq!(tested(vec![refusal()], NEVER), (1, 0, true));
    // It has come since: asked twice more in vain.
    let open = || InjectedFault::Slow(Duration::ZERO);
    let late = vec![open(), open(), open(), open(), refusal()];
    assert_eq!(tested(late, SOON), (5, 2, true));
}

#[test]
fn only_a_policy_ends_the_test() {
    use InjectedFault::{NoRight, Status, Terminating};
    for says_nothing in [Status(500), Status(422), NoRight, Terminating] {
        let refused = Status(403);
        assert_eq!(tested(vec![says_nothing], NEVER), (1, 0, false));
        assert_eq!(tested(vec![says_nothing, refused], SOON), (2, 0, true));
    }
}
