//! What systemd-oomd needs of systemd as the first process: to be told over a socket which cgroups it has to watch, as a
//! unit's `ManagedOOMMemoryPressure=kill` does. The protocol is Varlink: JSON objects, each with a zero byte behind it.

use std::{
    io::{BufRead as _, BufReader},
    os::unix::net::{UnixListener, UnixStream},
};

use evictd_tests::prelude::*;

const SOCKET: &str = "/run/systemd/io.system.ManagedOOM";
/// `RuntimeDirectory=` of the daemon's unit: it listens there to the managers of users.
const RUNTIME_DIRECTORY: &str = "/run/systemd/oom";
const METHOD: &str = "io.systemd.ManagedOOM.SubscribeManagedOOMCGroups";

/// Listens where systemd would, and tells clients that pods below this cgroup (a path below the root) are to be
/// killed where its memory pressure is above so many percent.
pub fn play(cgroup: &str, percent: u32) -> Result<()> {
    // Its parent is where the socket is.
    fs::create_dir_all(RUNTIME_DIRECTORY)?;
    let socket = Path::new(SOCKET);
    match fs::remove_file(socket) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => bail!(e),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    let told = told(cgroup, percent);
    // It ends with the daemon, or with this process.
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if let Err(error) = serve(&stream, &told) {
                eprintln!("playing systemd: {error:#}");
            }
        }
    });
    Ok(())
}

/// The one notification that there is to send; more would follow as units change.
fn told(cgroup: &str, percent: u32) -> Value {
    // A share of what 32 bits can hold.
    let limit = u64::from(u32::MAX) * u64::from(percent) / 100;
    let cgroup = json!({
        "mode": "kill",
        "path": cgroup,
        "property": "ManagedOOMMemoryPressure",
        "limit": limit,
    });
    json!({ "parameters": { "cgroups": [cgroup] }, "continues": true })
}

fn serve(stream: &UnixStream, told: &Value) -> io::Result<()> {
    let mut calls = BufReader::new(stream).split(0);
    calls.try_for_each(|call| {
        let call: Value = serde_json::from_slice(&call?)?;
        let answer = match call["method"] == METHOD {
            true => told,
            false => &json!({ "error": "org.varlink.service.MethodNotFound", "parameters": {} }),
        };
        let mut answer = serde_json::to_vec(answer)?;
        answer.push(0);
        let mut stream = stream;
        stream.write_all(&answer)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_is_told_and_others_are_not() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || serve(&ours, &told("/pods", 50)));
        let mut answers = BufReader::new(theirs.try_clone().unwrap()).split(0);
        let mut ask = |method: &str| -> Value {
            let mut call = serde_json::to_vec(&json!({ "method": method, "more": true })).unwrap();
            call.push(0);
            (&theirs).write_all(&call).unwrap();
            serde_json::from_slice(&answers.next().unwrap().unwrap()).unwrap()
        };
        assert_eq!(ask("org.example.Other")["parameters"], json!({}));
        let answer = ask(METHOD);
        assert_eq!(answer["continues"], true);
        let cgroup = &answer["parameters"]["cgroups"][0];
        assert_eq!(
            (&cgroup["path"], &cgroup["mode"]),
            (&json!("/pods"), &json!("kill"))
        );
        assert_eq!(cgroup["limit"], u32::MAX / 2);
        drop((answers, theirs));
        server.join().unwrap().unwrap();
    }
}
