//! The pictures: memory over time, and how long it took from the crossing to SIGKILL.

use std::fmt::Write as _;

use crate::{
    heat::{Heat, Killer},
    scope::{Programme, Race},
    stats::{quantile, sorted},
};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;
const MIB: f64 = (1 << 20) as f64;
/// Told apart also by those who do not see all colours, as far as eleven lines allow.
const COLOURS: [&str; 12] = [
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#7f7f7f",
    "#8c564b", "#bcbd22", "#9467bd", "#17becf",
];

/// Where data lies on paper.
pub struct Axes {
    x: (f64, f64),
    y: (f64, f64),
    log_x: bool,
}

impl Axes {
    /// From one value to another, both ways.
    pub fn linear(x: (f64, f64), y: (f64, f64)) -> Self {
        Self { x, y, log_x: false }
    }

    fn x(&self, value: f64) -> f64 {
        let scale = |v: f64| if self.log_x { v.max(1e-9).log10() } else { v };
        let (from, to) = (scale(self.x.0), scale(self.x.1));
        LEFT + (scale(value) - from) / (to - from) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value - self.y.0) / (self.y.1 - self.y.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

/// A picture that grows line by line.
pub struct Picture {
    text: String,
    axes: Axes,
    lines: usize,
}

impl Picture {
    /// An empty one with a title.
    pub fn new(title: &str, axes: Axes) -> Self {
        let mut picture = Self {
            text: format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
                 font-family=\"sans-serif\" font-size=\"12\">\n\
                 <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
            ),
            axes,
            lines: 0,
        };
        picture.write(LEFT, 24.0, "start", title);
        picture
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(element);
        self.text.push('\n');
    }

    fn write(&mut self, x: f64, y: f64, anchor: &str, words: &str) {
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#333333\">{words}</text>"
        ));
    }

    fn stroke(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        self.add(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {style}/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// A line upwards with a label below.
    pub fn x_tick(&mut self, value: f64, label: &str) {
        let x = self.axes.x(value);
        self.stroke((x, TOP), (x, HEIGHT - BOTTOM), "stroke=\"#e5e5e5\"");
        self.write(x, HEIGHT - BOTTOM + 18.0, "middle", label);
    }

    /// A line across with a label to the left.
    pub fn y_tick(&mut self, value: f64, label: &str) {
        let y = self.axes.y(value);
        self.stroke((LEFT, y), (WIDTH - RIGHT, y), "stroke=\"#e5e5e5\"");
        self.write(LEFT - 6.0, y + 4.0, "end", label);
    }

    /// A dashed line across that means something.
    pub fn marker(&mut self, value: f64, label: &str) {
        let y = self.axes.y(value);
        let style = "stroke=\"#b22222\" stroke-dasharray=\"6 4\"";
        self.stroke((LEFT, y), (WIDTH - RIGHT, y), style);
        self.write(LEFT + 4.0, y - 5.0, "start", label);
    }

    /// A line with its name.
    pub fn curve(&mut self, name: &str, points: &[(f64, f64)]) {
        let colour = COLOURS[self.lines % COLOURS.len()];
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", self.axes.x(*x), self.axes.y(*y)))
            .collect();
        self.add(format_args!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" points=\"{}\"/>",
            points.join(" ")
        ));
        let y = TOP + 8.0 + 18.0 * self.lines as f64;
        let x = WIDTH - RIGHT + 14.0;
        let style = format!("stroke=\"{colour}\" stroke-width=\"3\"");
        self.stroke((x, y), (x + 22.0, y), &style);
        self.write(x + 28.0, y + 4.0, "start", name);
        self.lines += 1;
    }

    /// The SVG.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Memory over time around the crossing, one line per contender: the first run of `touch` at full speed.
pub fn memory(race: &Race, programme: &Programme) -> Option<String> {
    const BEFORE_MS: f64 = -40.0;
    const AFTER_MS: f64 = 200.0;
    let size = programme.size as f64 / MIB;
    let threshold = (programme.size - programme.threshold) as f64 / MIB;
    let shown: Vec<&Heat> = first_of_each(race);
    let axes = Axes::linear((BEFORE_MS, AFTER_MS), (0.0, size * 1.08));
    let mut picture = Picture::new(
        "Memory of the node, a hog at full speed (MiB over ms)",
        axes,
    );
    for ms in (BEFORE_MS as i32..=AFTER_MS as i32).step_by(40) {
        picture.x_tick(f64::from(ms), &ms.to_string());
    }
    for step in 0..=4 {
        let mib = size * f64::from(step) / 4.0;
        picture.y_tick(mib, &format!("{mib:.0}"));
    }
    picture.marker(size, "the node is full: the OOM killer");
    picture.marker(threshold, "threshold, crossed at 0 ms");
    for heat in &shown {
        let crossing = heat.crossing?.time_ns as f64;
        let points: Vec<(f64, f64)> = heat
            .samples
            .iter()
            .map(|s| ((s.time_ns as f64 - crossing) / 1e6, s.usage as f64 / MIB))
            .filter(|(ms, _)| (BEFORE_MS..=AFTER_MS).contains(ms))
            .collect();
        picture.curve(&heat.contender, &points);
    }
    (!shown.is_empty()).then(|| picture.finish())
}

fn first_of_each(race: &Race) -> Vec<&Heat> {
    let mut shown: Vec<&Heat> = Vec::new();
    for heat in &race.heats {
        let is_course = heat.way == "touch" && heat.rate == 0 && heat.crossing.is_some();
        if is_course && !shown.iter().any(|h| h.contender == heat.contender) {
            shown.push(heat);
        }
    }
    shown
}

/// From the crossing to SIGKILL: the share of runs that were signalled by then, over all courses.
pub fn latency(race: &Race) -> Option<String> {
    let mut curves: Vec<(String, Vec<f64>)> = Vec::new();
    if !race.bare.is_empty() {
        curves.push(("bare wake-up".into(), sorted(race.bare.iter().copied())));
    }
    if !race.work.is_empty() {
        // Thousands of them: each half of a percent is drawn.
        let work = sorted(race.work.iter().copied());
        let shares = (1..=200).map(|i| f64::from(i) / 200.0);
        let drawn = shares.filter_map(|share| quantile(&work, share)).collect();
        curves.push(("bare work".into(), drawn));
    }
    for line in race.results.iter().filter(|line| line.way == "all") {
        let won = race
            .heats
            .iter()
            .filter(|h| h.contender == line.contender && h.killer != Killer::Oom);
        let values = sorted(won.filter_map(|h| h.stages.signalled));
        if !values.is_empty() {
            curves.push((line.contender.clone(), values));
        }
    }
    let longest = curves
        .iter()
        .filter_map(|(_, v)| v.last())
        .fold(1e3_f64, |a, b| a.max(*b));
    let axes = Axes {
        x: (1.0, 10_f64.powf(longest.log10().ceil())),
        y: (0.0, 1.0),
        log_x: true,
    };
    let end = axes.x.1;
    let mut picture = Picture::new(
        "From the crossing to SIGKILL: share of runs signalled by then (runs lost to the OOM killer left out)",
        axes,
    );
    let mut us = 1.0;
    while us <= end {
        let label = match us {
            us if us < 1e3 => format!("{us:.0} us"),
            us if us < 1e6 => format!("{:.0} ms", us / 1e3),
            us => format!("{:.0} s", us / 1e6),
        };
        picture.x_tick(us, &label);
        us *= 10.0;
    }
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        picture.y_tick(share, &format!("{:.0} %", share * 100.0));
    }
    let any = !curves.is_empty();
    for (name, values) in curves {
        let n = values.len() as f64;
        let mut points = vec![(values[0].max(1.0), 0.0)];
        for (i, value) in values.iter().enumerate() {
            let (before, after) = (i as f64 / n, (i + 1) as f64 / n);
            points.extend([(value.max(1.0), before), (value.max(1.0), after)]);
        }
        picture.curve(&name, &points);
    }
    any.then(|| picture.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_lies_where_the_axes_say() {
        let axes = Axes {
            x: (1.0, 1000.0),
            y: (0.0, 2.0),
            log_x: true,
        };
        assert!((axes.x(1.0) - LEFT).abs() < 1e-6);
        assert!((axes.x(1000.0) - (WIDTH - RIGHT)).abs() < 1e-6);
        let third = LEFT + (WIDTH - LEFT - RIGHT) / 3.0;
        assert!((axes.x(10.0) - third).abs() < 1e-6);
        assert!(axes.y(2.0) < axes.y(0.0));
    }
}
