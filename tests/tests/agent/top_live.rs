//! `evictd top` on a terminal of 80 columns and 24 lines: it draws, follows keys, and leaves the terminal as it was.

use std::thread;

use evictd_tests::{agent::binary, prelude::*, reaped::Reaped};
use nix::pty::{Winsize, openpty};

const LEAVES: &str = "\x1b[?1049l";

/// The program on a terminal of its own, and what the terminal shows.
struct Shown {
    child: Reaped,
    keys: File,
    screen: Arc<Mutex<(vt100::Parser, Vec<u8>)>>,
}

impl Shown {
    fn start(config: &Path, no_colour: bool) -> Self {
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let terminal = openpty(Some(&size), None).unwrap();
        let side = || Stdio::from(terminal.slave.try_clone().unwrap());
        // A session of its own: the terminal of the test is not asked for its size.
        let mut command = Command::new("setsid");
        command
            .arg(binary().unwrap())
            .args(["top", "--interval", "0.3", "--config"])
            .arg(config)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(side())
            .stdout(side())
            .stderr(side());
        if no_colour {
            command.env("NO_COLOR", "1");
        }
        let child = Reaped(command.spawn().unwrap());
        let keys = File::from(terminal.master);
        let screen = Arc::new(Mutex::new((vt100::Parser::new(24, 80, 0), Vec::new())));
        let (mut output, drawn) = (keys.try_clone().unwrap(), Arc::clone(&screen));
        // It ends when the program does: a terminal without another side is at its end.
        drop((command, terminal.slave));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let mut drawn = drawn.lock();
                drawn.0.process(&bytes[..count]);
                drawn.1.extend_from_slice(&bytes[..count]);
            }
        });
        Self {
            child,
            keys,
            screen,
        }
    }

    fn text(&self) -> String {
        let screen = self.screen.lock();
        screen.0.screen().contents()
    }

    fn raw(&self) -> String {
        let screen = self.screen.lock();
        String::from_utf8_lossy(&screen.1).into_owned()
    }

    fn waits_for(&self, words: &str) {
        let seen = until(SOON, || self.text().contains(words));
        assert!(seen, "{words}:\n{}", self.text());
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn ends(&mut self) {
        let mut status = None;
        let ended = until(SOON, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(ended, "{}", self.text());
        assert_eq!(status.unwrap().code(), Some(0), "{}", self.raw());
        let left = until(SOON, || self.raw().contains(LEAVES));
        assert!(left, "the terminal is not as before: {:?}", self.raw());
    }
}

// R13, R44
#[test]
fn a_terminal_shows_the_node_and_follows_keys() {
    let files = as_root!(Files::of_hog_and_calm("live", 256));
    let config = files.write().unwrap();
    let _calm = files.hog("calm", &["--mib", "20"]);
    let _hog = files.hog("hog", &["--mib", "60"]);
    let mut shown = Shown::start(&config, false);
    shown.waits_for("q quit");
    shown.waits_for("evicted first");
    let text = shown.text();
    let parts = [
        "every 0.3 s  2 pods",
        "memory.available",
        "Pods for memory.available, by eviction",
        "none in the journal",
    ];
    has(&text, &parts);
    assert!(text.lines().count() <= 24, "{text}");
    shown.press("s");
    shown.waits_for("by usage");
    assert!(
        shown.raw().contains("\x1b[38;5;"),
        "the first victim is marked by colour"
    );
    shown.press("q");
    shown.ends();
}

#[test]
fn without_colours_it_is_the_same() {
    let files = as_root!(Files::of_hog_and_calm("plain", 256));
    let config = files.write().unwrap();
    let _hog = files.hog("hog", &["--mib", "60"]);
    let mut shown = Shown::start(&config, true);
    shown.waits_for("evicted first");
    // Control-C ends it as well.
    shown.press("\x03");
    shown.ends();
    assert!(!shown.raw().contains("\x1b[38;5;"), "{:?}", shown.raw());
}
