//! A child process that does as the lines on its standard input say, and answers with lines.

use std::{
    io::{BufRead as _, BufReader},
    process::{ChildStdin, ChildStdout},
};

use crate::{prelude::*, reaped::Reaped};

/// Child process that answers lines with lines; it is killed and reaped when this is dropped.
pub struct Talker {
    pub child: Reaped,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Finds a binary of this build: in this variable, or beside the program that runs, or one directory up when that is a
/// test.
pub fn binary(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let exe = std::env::current_exe()?;
    let mut dirs = exe.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    let found = dirs.find(|path| path.is_file());
    found.with_context(|| format!("no {name} binary near {}", exe.display()))
}

impl Talker {
    /// Starts it and returns when it says that it is ready.
    pub fn start(command: &mut Command) -> Result<Self> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Reaped(command.spawn()?);
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("no pipes");
        };
        let output = BufReader::new(output);
        let mut talker = Self {
            child,
            input,
            output,
        };
        match talker.hear()?.as_str() {
            "ready" => Ok(talker),
            said => bail!("{command:?} says {said:?}"),
        }
    }

    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input, "{line}")
    }

    /// Reads the child's next line; an empty one when it has ended.
    pub fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}
