//! A small HTTP/1.1 server on a thread of its own. Connections are bounded in number and in time: a client that sends
//! nothing, or reads nothing, holds up no other client.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{IpAddr, TcpListener},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut, buf::Chain};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::tls::{Tls, Transport};
use evictd_sys::fs::lacks_descriptor;

/// The longest request head, in bytes.
const HEAD_BYTES: usize = 8 << 10;
/// Without a free descriptor, or memory, there is nothing to accept with; the listener is left alone for so long.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);

/// Limits on connections: how many there may be, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at once. One more takes the place of the oldest idle one.
    pub connections: usize,
    /// Time from the connection to the end of the request's head.
    pub head: Duration,
    /// Time from there to the end of the answer.
    pub answer: Duration,
}

/// Request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// The path, without a query.
    pub path: &'a str,
    /// The text of the `Accept` header; empty where there is none.
    pub accept: &'a str,
    /// Text of the `Authorization` header; empty where there is none.
    pub authorization: &'a str,
}

/// Answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Status code with its reason: `200 OK`.
    pub status: &'static str,
    /// Content-Type.
    pub kind: &'static str,
    /// The text. It is sent as it is, without a copy.
    pub body: Bytes,
}

impl Answer {
    /// A text for people.
    pub fn plain(status: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            kind: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }
}

/// Source of the answers.
pub(super) trait Responder: Send + 'static {
    /// The answer to a GET; `None` while it is not known.
    fn answer(&mut self, request: Request<'_>) -> Option<Answer>;

    /// Becomes readable when an answer that was not known may be. It is called before the answers are asked for again.
    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes in what has made that readable.
    fn clear_ready(&self) {}
}

impl<F: FnMut(Request<'_>) -> Answer + Send + 'static> Responder for F {
    fn answer(&mut self, request: Request<'_>) -> Option<Answer> {
        Some(self(request))
    }
}

/// Serves a bound listener on a new thread, for as long as the process lives; over TLS where that is given.
///
/// # Errors
/// The system has no thread to give, or refuses a listener that does not block.
pub(super) fn spawn(
    name: &str,
    listener: TcpListener,
    limits: Limits,
    tls: Option<Tls>,
    responder: impl Responder,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut server = Server {
        spare: Some(spare(&listener)?),
        listener,
        limits,
        tls,
        responder,
        connections: Vec::with_capacity(limits.connections),
        no_descriptor_until: None,
        is_short: false,
    };
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(move || server.run()).map(drop)
}

struct Server<R> {
    listener: TcpListener,
    limits: Limits,
    tls: Option<Tls>,
    responder: R,
    /// The oldest first.
    connections: Vec<Connection>,
    no_descriptor_until: Option<Instant>,
    /// Open for nothing but its number, which a connection takes where the process has none left: the kubelet restarts
    /// an agent whose probes are not answered.
    spare: Option<OwnedFd>,
    /// The last connection found neither a descriptor nor the spare one.
    is_short: bool,
}

/// A descriptor to close when there is no other one.
fn spare(listener: &TcpListener) -> io::Result<OwnedFd> {
    listener.as_fd().try_clone_to_owned()
}

struct Connection {
    stream: Transport,
    peer: IpAddr,
    /// Time at which the connection is closed, whatever its state.
    deadline: Instant,
    state: State,
}

enum State {
    /// Part of the request's head that has come.
    Request(BytesMut),
    /// The complete head, whose answer is not known yet.
    Waiting(BytesMut),
    /// Part of the answer that is not sent yet: head and body.
    Answer(Chain<Bytes, Bytes>),
}

/// Work that can be done after a wait.
struct Ready {
    /// There are new connections.
    new: bool,
    /// Answers may be known now.
    answers: bool,
    /// Whether each of the connections can go on.
    connections: Vec<bool>,
}

impl<R: Responder> Server<R> {
    fn run(&mut self) {
        loop {
            let ready = self.wait();
            let now = Instant::now();
            if ready.answers {
                self.responder.clear_ready();
            }
            let mut can_go_on = ready.connections.into_iter();
            let (limits, responder) = (self.limits, &mut self.responder);
            self.connections.retain_mut(|connection| {
                let is_ready = can_go_on.next().unwrap_or(false);
                let goes_on = match connection.state {
                    // Nothing but its end was waited for.
                    State::Waiting(_) if is_ready => false,
                    State::Waiting(_) if !ready.answers => true,
                    State::Request(_) | State::Answer(_) if !is_ready => true,
                    _ => connection.go_on(now + limits.answer, responder),
                };
                goes_on && now < connection.deadline
            });
            if ready.new {
                self.accept(now);
            }
            if self.spare.is_none() {
                // As soon as the connection that has its number is over, or any other.
                self.spare = spare(&self.listener).ok();
            }
        }
    }

    /// Waits until something can be done.
    fn wait(&mut self) -> Ready {
        let now = Instant::now();
        self.no_descriptor_until = self.no_descriptor_until.filter(|until| now < *until);
        let deadlines = self.connections.iter().map(|c| c.deadline);
        let next = deadlines.chain(self.no_descriptor_until).min();
        let timeout = next.map_or(PollTimeout::NONE, |next| {
            // Rounded up, or the last millisecond would be spent awake.
            let left = next.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let listening = match self.no_descriptor_until {
            None => PollFlags::POLLIN,
            Some(_) => PollFlags::empty(),
        };
        let answers = self.responder.ready_fd();
        let mut fds = Vec::with_capacity(2 + self.connections.len());
        fds.push(PollFd::new(self.listener.as_fd(), listening));
        fds.extend(answers.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        fds.extend(self.connections.iter().map(|c| {
            let flags = match c.state {
                State::Request(_) => PollFlags::POLLIN | c.stream.wants(),
                State::Answer(_) => PollFlags::POLLOUT,
                // POLLHUP and POLLERR come unasked.
                State::Waiting(_) => PollFlags::empty(),
            };
            PollFd::new(c.stream.as_fd(), flags)
        }));
        // Interrupted, or without memory: nothing is ready, and it is tried again.
        let any = poll(&mut fds, timeout).is_ok_and(|n| n > 0);
        let mut ready = fds.iter().map(|fd| any && fd.any().unwrap_or(true));
        Ready {
            new: ready.next().unwrap_or(false),
            answers: answers.is_some() && ready.next().unwrap_or(false),
            connections: ready.collect(),
        }
    }

    /// Takes in the connections that wait, one turn's worth of them.
    fn accept(&mut self, now: Instant) {
        for _ in 0..self.limits.connections {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    self.is_short = false;
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    let stream = match &mut self.tls {
                        None => Transport::Plain(stream),
                        Some(tls) => match tls.accept(stream) {
                            Ok(stream) => stream,
                            // The client sees its connection end.
                            Err(_) => continue,
                        },
                    };
                    self.make_room();
                    self.connections.push(Connection {
                        stream,
                        peer: peer.ip(),
                        deadline: now + self.limits.head,
                        state: State::Request(BytesMut::new()),
                    });
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if lacks_descriptor(&e) => {
                    if self.spare.take().is_some() {
                        continue;
                    }
                    // The connection that has the spare number is given time to be answered.
                    if std::mem::replace(&mut self.is_short, true) {
                        self.drop_one();
                    }
                    self.no_descriptor_until = Some(now + NO_DESCRIPTOR);
                    return;
                }
                // The connection stays in the queue, and the listener ready.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) => {
                    self.no_descriptor_until = Some(now + NO_DESCRIPTOR);
                    return;
                }
                // A client that is gone already.
                Err(_) => {}
            }
        }
    }

    fn make_room(&mut self) {
        if self.connections.len() >= self.limits.connections {
            self.drop_one();
        }
    }

    /// Closes a connection of the address that has most of them, so that one client cannot take the place of another.
    fn drop_one(&mut self) {
        let all = || {
            let of = |c: &Connection| (c.peer, !matches!(c.state, State::Answer(_)));
            self.connections.iter().map(of)
        };
        if let Some(index) = connection_to_close(all) {
            self.connections.remove(index);
        }
    }
}

/// Of connections by address and whether they are idle, the oldest first: the oldest idle one of the address that has
/// most of them, or the oldest one of it where none is idle.
fn connection_to_close<I: Iterator<Item = (IpAddr, bool)>>(all: impl Fn() -> I) -> Option<usize> {
    let mut counts = HashMap::<IpAddr, usize>::new();
    for (peer, _) in all() {
        *counts.entry(peer).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    let of_that = |peer: &IpAddr| counts.get(peer) == Some(&most);
    let idle = all().position(|(peer, idle)| idle && of_that(&peer));
    idle.or_else(|| all().position(|(peer, _)| of_that(&peer)))
}

impl Connection {
    /// Reads or writes what can be read or written without waiting; false when the connection is over.
    fn go_on(&mut self, answered_by: Instant, responder: &mut impl Responder) -> bool {
        let answer = match &mut self.state {
            State::Request(head) => match read_head(&mut self.stream, head) {
                Ok(Head::Partial) => return true,
                Ok(Head::Complete) => {
                    self.deadline = answered_by;
                    let answer = respond(head, responder);
                    if answer.is_none() {
                        self.state = State::Waiting(std::mem::take(head));
                    }
                    answer
                }
                Ok(Head::TooLong) => {
                    self.deadline = answered_by;
                    let status = "431 Request Header Fields Too Large";
                    Some(Answer::plain(status, "too long\n"))
                }
                Err(_) => return false,
            },
            State::Waiting(head) => respond(head, responder),
            State::Answer(_) => None,
        };
        if let Some(answer) = answer {
            self.state = State::Answer(encode(answer));
        }
        match &mut self.state {
            State::Answer(rest) => {
                let unfinished = write_rest(&mut self.stream, rest);
                // What the client has sent beyond its request would make a plain close a reset.
                unfinished || self.stream.finish()
            }
            State::Request(_) | State::Waiting(_) => true,
        }
    }
}

enum Head {
    Partial,
    Complete,
    TooLong,
}

fn read_head(stream: &mut impl Read, head: &mut BytesMut) -> io::Result<Head> {
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => head.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Head::Partial),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        if head.windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(Head::Complete);
        }
        if head.len() > HEAD_BYTES {
            return Ok(Head::TooLong);
        }
    }
}

/// The answer to a complete head, as far as it is known.
fn respond(head: &[u8], responder: &mut impl Responder) -> Option<Answer> {
    let mut lines = std::str::from_utf8(head).unwrap_or_default().split("\r\n");
    let parts: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let header = |wanted: &str| {
        let value = lines.clone().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then(|| value.trim())
        });
        value.unwrap_or_default()
    };
    match parts[..] {
        ["GET", target, version] if version.starts_with("HTTP/1.") => responder.answer(Request {
            path: target.split('?').next().unwrap_or(target),
            accept: header("accept"),
            authorization: header("authorization"),
        }),
        [_, _, version] if version.starts_with("HTTP/1.") => {
            Some(Answer::plain("405 Method Not Allowed", "only GET\n"))
        }
        _ => Some(Answer::plain(
            "400 Bad Request",
            "not a request of HTTP/1.1\n",
        )),
    }
}

fn encode(answer: Answer) -> Chain<Bytes, Bytes> {
    let Answer { status, kind, body } = answer;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    Bytes::from(head).chain(body)
}

/// Whether there is more to send, later.
fn write_rest(stream: &mut impl Write, rest: &mut impl Buf) -> bool {
    while rest.has_remaining() {
        match stream.write(rest.chunk()) {
            Ok(n) if n > 0 => rest.advance(n),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{SocketAddr, TcpStream},
    };

    use super::*;

    const LIMITS: Limits = Limits {
        connections: 4,
        head: Duration::from_millis(200),
        answer: Duration::from_millis(200),
    };

    fn serve(limits: Limits, body: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answer = move |request: Request<'_>| {
            let Request { path, accept, .. } = request;
            Answer::plain("200 OK", format!("{path} {accept}{body}"))
        };
        spawn("served", listener, limits, None, answer).unwrap();
        address
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = connect(address);
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Nothing comes any more: closed, or reset.
    fn is_closed(stream: &mut TcpStream) -> bool {
        match stream.read(&mut [0; 16]) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn answers_what_is_asked() {
        let address = serve(LIMITS, "body");
        let text = ask(address, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("\r\nContent-Length: 13\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n/metrics body"), "{text}");
        let text = ask(
            address,
            "GET / HTTP/1.1\r\nHost: a\r\naccept: text/plain \r\n\r\n",
        );
        assert!(text.ends_with("\r\n\r\n/ text/plainbody"), "{text}");
        for (request, status) in [
            ("POST / HTTP/1.1\r\n\r\n", "405"),
            ("hello\r\n\r\n", "400"),
            ("GET / HTTP/2\r\n\r\n", "400"),
            (&"x".repeat(HEAD_BYTES + 2000), "431"),
        ] {
            let mut stream = connect(address);
            // The answer may come before all is sent.
            let _ = stream.write_all(request.as_bytes());
            let mut head = [0; 12];
            stream.read_exact(&mut head).unwrap();
            assert_eq!(&head[..], format!("HTTP/1.1 {status}").as_bytes());
        }
    }

    #[test]
    fn a_request_may_come_in_pieces() {
        let limits = Limits {
            head: Duration::from_secs(30),
            ..LIMITS
        };
        let mut stream = connect(serve(limits, "body"));
        for piece in ["GET / HT", "TP/1.1\r", "\nHost: a\r\n\r", "\n"] {
            stream.write_all(piece.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("/ body"), "{text}");
    }

    #[test]
    fn idle_connections_are_closed_and_block_no_other() {
        let limits = Limits {
            head: Duration::from_secs(3600),
            ..LIMITS
        };
        let address = serve(limits, "body");
        let mut idle: Vec<_> = (0..40).map(|_| connect(address)).collect();
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").ends_with("/ body"));
        // 41 have come, and 4 of them may be there.
        assert!(idle[..36].iter_mut().all(is_closed));

        let mut slow = connect(serve(LIMITS, "body"));
        slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(is_closed(&mut slow));
    }

    #[test]
    fn an_answer_that_is_not_read_is_given_up() {
        static LONG: std::sync::LazyLock<String> =
            std::sync::LazyLock::new(|| "x".repeat(64 << 20));
        let address = serve(LIMITS, &LONG);
        let mut lazy = connect(address);
        lazy.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        std::thread::sleep(LIMITS.answer * 3);
        let mut text = Vec::new();
        let _ = lazy.read_to_end(&mut text);
        assert!(text.len() < LONG.len(), "{}", text.len());
        // One that reads gets all of it.
        let limits = Limits {
            answer: Duration::from_secs(60),
            ..LIMITS
        };
        let text = ask(serve(limits, &LONG), "GET / HTTP/1.1\r\n\r\n");
        assert!(text.len() > LONG.len());
    }

    /// Set in the process of a test that takes all descriptors: their limit is the process's.
    const CHILD: &str = "EVICTD_TEST_WITHOUT_DESCRIPTORS";

    fn probe(socket: socket2::Socket, address: SocketAddr) -> io::Result<String> {
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        socket.connect(&address.into())?;
        let (mut stream, mut text) = (TcpStream::from(socket), String::new());
        stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n")?;
        stream.read_to_string(&mut text)?;
        // Its number stays taken: the client is no part of the server's process elsewhere.
        std::mem::forget(stream);
        Ok(text)
    }

    #[test]
    fn without_a_free_descriptor_probes_are_answered() {
        if std::env::var_os(CHILD).is_none() {
            let this = "telemetry::http::tests::without_a_free_descriptor_probes_are_answered";
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", this])
                .env(CHILD, "")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&child.stdout);
            assert!(
                child.status.success() && said.contains("1 passed"),
                "{said}"
            );
            return;
        }
        let few = libc::rlimit {
            rlim_cur: 64,
            rlim_max: 64,
        };
        // SAFETY: it is given a local.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) };
        assert_eq!(done, 0);
        let limits = Limits {
            head: Duration::from_secs(3600),
            ..LIMITS
        };
        let address = serve(limits, "");
        let socket =
            || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let (idle, probes) = (socket(), [(); 4].map(|()| socket()));
        let mut taken = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            taken.push(file);
        }
        for socket in probes {
            let answer = probe(socket, address).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        // A client that asks nothing has the spare number.
        drop(taken.pop());
        let probe_after = socket();
        idle.connect(&address.into()).unwrap();
        let answer = probe(probe_after, address).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[test]
    fn the_address_with_most_connections_gives_one_up() {
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        let goes = |all: &[(u8, bool)]| {
            let all: Vec<_> = all.iter().map(|(n, idle)| (ip(*n), *idle)).collect();
            connection_to_close(|| all.iter().copied())
        };
        assert_eq!(goes(&[]), None);
        assert_eq!(
            goes(&[(1, true), (2, false), (2, true), (2, true)]),
            Some(2)
        );
        assert_eq!(goes(&[(1, true), (2, false), (2, false)]), Some(1));
        assert_eq!(goes(&[(1, false), (2, true)]), Some(1));
    }
}
