//! The screen of the live view, drawn anew from each sample. 80 columns and 24 lines are enough for all of it.

use std::{cmp::Reverse, env, time::Duration};

use evictd_engine::{Resource, Signal};
use evictd_node::proc::psi::Psi;
use ratatui::{
    Frame,
    crossterm::event::KeyCode,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Cell, Paragraph, Row, Table, TableState},
};

use crate::cli::{
    evictions::EvictionSummary,
    rank::PodJson,
    report::note,
    signals::{SignalJson, duration},
    table::{amount_of, or_dash},
};

/// Columns of a bar, without its frame.
const BAR: usize = 12;
/// Thresholds that are shown at most, so that pods have room.
const MAX_SIGNALS: usize = 7;
/// A threshold that is met within so many seconds is marked.
const SOON: f64 = 60.0;

/// One sample, as the screen shows it.
pub(super) struct View {
    pub signals: Vec<SignalJson>,
    /// The signal whose order the pods stand in.
    pub signal: Signal,
    pub pods: Vec<PodJson>,
    pub pressure: Vec<(&'static str, Psi)>,
    /// The newest first.
    pub past: Vec<PastEviction>,
    /// Pods that are known by their cgroups alone.
    pub unknown: usize,
    pub are_policies_unknown: bool,
}

/// An earlier eviction.
#[derive(Clone)]
pub(super) struct PastEviction {
    time: String,
    pub pod: String,
    signal: String,
    pub note: String,
}

impl PastEviction {
    pub fn new(known: &EvictionSummary) -> Self {
        let eviction = &known.eviction;
        Self {
            // Without fractions of a second.
            time: eviction.time.chars().take(19).collect(),
            pod: eviction.pod(),
            signal: eviction.signal.clone(),
            note: note(known),
        }
    }
}

/// The order of the pods on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Eviction,
    Usage,
    Growth,
    Limit,
    Name,
}

impl Sort {
    const ALL: [(Self, &str); 5] = [
        (Self::Eviction, "eviction"),
        (Self::Usage, "usage"),
        (Self::Growth, "growth"),
        (Self::Limit, "time to limit"),
        (Self::Name, "name"),
    ];

    /// Each pod with its place in the order of eviction.
    fn apply(self, pods: &[PodJson]) -> Vec<(usize, &PodJson)> {
        let mut sorted: Vec<_> = pods.iter().enumerate().collect();
        match self {
            Self::Eviction => {}
            Self::Usage => sorted.sort_by_key(|(_, pod)| Reverse(pod.usage)),
            Self::Growth => sorted.sort_by(|(_, a), (_, b)| {
                let growth = |pod: &PodJson| pod.growth.unwrap_or(f64::MIN);
                growth(b).total_cmp(&growth(a))
            }),
            Self::Limit => sorted.sort_by(|(_, a), (_, b)| {
                let until = |pod: &PodJson| pod.until_limit_seconds.unwrap_or(f64::MAX);
                until(a).total_cmp(&until(b))
            }),
            Self::Name => sorted.sort_by(|(_, a), (_, b)| a.pod.cmp(&b.pod)),
        }
        sorted
    }
}

/// State that the keys have changed.
pub(super) struct State {
    /// Among the thresholds.
    selected: usize,
    sort: usize,
    /// The first pod that is shown.
    offset: usize,
    interval: Duration,
    has_colours: bool,
}

impl State {
    pub fn new(interval: Duration) -> Self {
        Self {
            selected: 0,
            sort: 0,
            offset: 0,
            interval,
            has_colours: has_colours(|name| env::var(name).ok()),
        }
    }

    /// The signal that is selected.
    pub fn signal(&self, signals: &[SignalJson]) -> Option<Signal> {
        Some(signals.get(self.selected)?.signal)
    }

    /// A key that does not end the view.
    pub fn press(&mut self, key: KeyCode, view: &View) {
        let signals = view.signals.len().max(1);
        let last = view.pods.len().saturating_sub(1);
        match key {
            KeyCode::Tab | KeyCode::Right => self.selected = (self.selected + 1) % signals,
            KeyCode::BackTab | KeyCode::Left => {
                self.selected = (self.selected + signals - 1) % signals;
            }
            KeyCode::Char('s') => self.sort = (self.sort + 1) % Sort::ALL.len(),
            KeyCode::Down | KeyCode::Char('j') => self.offset = (self.offset + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::PageDown => self.offset = (self.offset + 10).min(last),
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(10),
            KeyCode::Home => self.offset = 0,
            _ => {}
        }
    }

    fn style(&self, colour: Color) -> Style {
        match self.has_colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }
}

/// Whether the terminal can be written to at any place.
pub(super) fn is_capable() -> bool {
    env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb")
}

/// Whether colours are used: as no-color.org says, and not on terminals that have none.
fn has_colours(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    let term = variable("TERM").unwrap_or_default();
    let is_plain = term.starts_with("vt") || term.ends_with("-m") || term.ends_with("-mono");
    !is_refused && !is_plain
}

/// Draws one screen.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, state: &mut State) {
    // Thresholds may be fewer after a change of the layout of disks.
    state.selected = state.selected.min(view.signals.len().saturating_sub(1));
    state.offset = state.offset.min(view.pods.len().saturating_sub(1));
    let length = |rows: usize| Constraint::Length(u16::try_from(rows).unwrap_or(u16::MAX));
    let [title, signals, pressure, pods, past, foot] = Layout::vertical([
        Constraint::Length(1),
        length(1 + view.signals.len().min(MAX_SIGNALS)),
        Constraint::Length(2),
        Constraint::Min(3),
        length(1 + view.past.len().max(1)),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(head(view, state), title);
    draw_signals(frame, view, state, signals);
    frame.render_widget(pressure_line(view), pressure);
    draw_pods(frame, view, state, pods);
    draw_past(frame, view, past);
    let keys = "q quit  Tab signal  s sort  Up/Down scroll";
    frame.render_widget(Line::from(keys).style(Modifier::DIM), foot);
}

fn head<'a>(view: &View, state: &State) -> Line<'a> {
    let interval = state.interval.as_secs_f64();
    let mut title = format!("evictd top  every {interval} s  {} pods", view.pods.len());
    if view.unknown > 0 {
        title += &format!(", {} known by cgroup alone", view.unknown);
    }
    if view.are_policies_unknown {
        title += "  no agent answers: without policies";
    }
    Line::from(title).bold()
}

fn draw_signals(frame: &mut Frame<'_>, view: &View, state: &State, area: Rect) {
    let header = Row::new([
        "SIGNAL",
        "LEFT ABOVE IT",
        "AVAILABLE",
        "THRESHOLD",
        "MET IN",
        "NONE IN",
    ]);
    let rows = view.signals.iter().map(|s| {
        let amount = |amount: i64| amount_of(s.signal.resource(), amount.into());
        let is_soon = s
            .until_threshold_seconds
            .is_some_and(|seconds| seconds < SOON);
        let style = match (s.met, is_soon) {
            (true, _) => state.style(Color::Red),
            (false, true) => state.style(Color::Yellow),
            _ => Style::new(),
        };
        Row::new([
            s.name(),
            bar(s),
            or_dash(s.available.map(amount)),
            s.threshold(),
            s.met_in(),
            or_dash(s.until_exhausted_seconds.map(duration)),
        ])
        .style(style)
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(2 + BAR as u16),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(7),
    ];
    let table = Table::new(rows, widths)
        .header(header.style(Modifier::BOLD))
        .row_highlight_style(Modifier::REVERSED);
    let mut selected = TableState::new().with_selected(state.selected);
    frame.render_stateful_widget(table, area, &mut selected);
}

/// Draws how far the threshold is away: full where nothing is used, empty where it is met.
fn bar(signal: &SignalJson) -> String {
    let seen = signal.available.zip(signal.capacity).zip(signal.threshold);
    let Some(((available, capacity), threshold)) = seen else {
        return "not seen here".to_owned();
    };
    let above = available.saturating_sub(threshold).max(0) as f64;
    let whole = capacity.saturating_sub(threshold).max(1) as f64;
    // What is left is something, even where it is less than a column.
    let columns = (above / whole * BAR as f64).ceil() as usize;
    format!("[{:.<BAR$}]", "#".repeat(columns.min(BAR)))
}

fn pressure_line<'a>(view: &View) -> Line<'a> {
    if view.pressure.is_empty() {
        return Line::from("PSI: unavailable");
    }
    let mut text = "PSI, % of 10 s:".to_owned();
    for (name, pressure) in &view.pressure {
        text += &format!("  {name} some {:.1}", pressure.some);
        if let Some(full) = &pressure.full {
            text += &format!(" full {:.1}", full);
        }
    }
    Line::from(text)
}

fn draw_pods(frame: &mut Frame<'_>, view: &View, state: &State, area: Rect) {
    let [title, table] = Layout::vertical([Constraint::Length(1), Constraint::Min(2)]).areas(area);
    let (sort, name) = Sort::ALL[state.sort];
    let resource = view.signal.resource();
    let unmeasured = match resource {
        Resource::Memory | Resource::Pids => "",
        // A scan of the disk is the agent's.
        _ => ", without what pods use of it",
    };
    let heading = format!("Pods for {}{unmeasured}, by {name}", view.signal);
    frame.render_widget(Line::from(heading).bold(), title);
    let pods = sort.apply(&view.pods);
    let widths = [
        Constraint::Length(3),
        Constraint::Fill(2),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Fill(3),
    ];
    // As the table divides its area: one column between two.
    let [_, name, ..] = Layout::horizontal(widths).spacing(1).areas::<6>(table);
    let name = usize::from(name.width);
    let rows = pods.iter().skip(state.offset).map(|(place, pod)| {
        let amount = |amount: u64| amount_of(resource, amount.into());
        let bytes = |rate: f64| amount_of(Resource::Memory, rate as i128);
        let style = match (pod.predicted_eviction_victim, pod.predicted_oom_victim) {
            (true, _) => state.style(Color::Red).add_modifier(Modifier::BOLD),
            (false, true) => state.style(Color::Magenta).add_modifier(Modifier::BOLD),
            _ => Style::new(),
        };
        Row::new([
            Cell::from((place + 1).to_string()),
            Cell::from(shortened(&pod.pod, name)),
            Cell::from(or_dash(pod.usage.map(amount))),
            Cell::from(or_dash(pod.growth.map(bytes))),
            Cell::from(or_dash(pod.until_limit_seconds.map(duration))),
            Cell::from(Span::raw(reason(pod, resource))),
        ])
        .style(style)
    });
    let header = ["#", "POD", "USAGE", "MEMORY/s", "LIMIT IN", "REASON"];
    let header = Row::new(header).style(Modifier::BOLD);
    frame.render_widget(Table::new(rows, widths).header(header), table);
}

/// A name that fits: what tells one pod of an owner from the next is at its end, and the namespace at its beginning.
/// Two points stand in no name.
fn shortened(name: &str, width: usize) -> String {
    const CUT: &str = "..";
    let length = name.chars().count();
    if length <= width {
        return name.to_owned();
    }
    let room = width.saturating_sub(CUT.len());
    let end = room.div_ceil(2);
    let begin = name.chars().take(room - end);
    let begin = begin.chain(CUT.chars());
    begin.chain(name.chars().skip(length - end)).collect()
}

/// Why a pod stands where it stands: its first note, for lines are short.
fn reason(pod: &PodJson, resource: Resource) -> String {
    let mut words = pod.notes();
    if let Some(excess) = pod.excess {
        let side = if excess > 0 { "above" } else { "below" };
        let amount = amount_of(resource, excess.abs());
        words.push(format!("{amount} {side} request"));
    }
    if !pod.priority_unknown {
        words.push(format!("priority {}", pod.priority));
    }
    words.push(pod.qos_class.to_owned());
    words.join(", ")
}

fn draw_past(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let mut lines = vec![Line::from("Last evictions").bold()];
    if view.past.is_empty() {
        lines.push(Line::from("none in the journal"));
    }
    lines.extend(view.past.iter().map(|past| {
        let note = match &*past.note {
            "" => String::new(),
            note => format!(" ({note})"),
        };
        let before = format!("{}  {}  ", past.time, past.signal);
        let room = usize::from(area.width).saturating_sub(before.len() + note.len());
        Line::from(format!("{before}{}{note}", shortened(&past.pod, room)))
    }));
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests;
