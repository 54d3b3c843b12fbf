//! Lines over time as SVG: what incident reports and the benchmark draw. `plotters` draws; this module places the
//! labels so that none lies on another one.

use std::{fmt::Display, io, ops::Range};

use plotters::{
    coord::{
        Shift,
        ranged1d::{AsRangedCoord, ValueFormatter},
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// Background, text, grid and the colours of marks, in the light scheme.
const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
const GRID: RGBColor = RGBColor(0xe5, 0xe5, 0xe5);
const LEVEL: RGBColor = RGBColor(0xb2, 0x22, 0x22);
const MOMENT: RGBColor = RGBColor(0x00, 0x72, 0xb2);
/// Distinct without full colour vision too, as far as twelve lines allow.
const CURVES: [RGBColor; 12] = [
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x4c, 0x6e, 0xf5),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x7f, 0x7f, 0x7f),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0xbc, 0xbd, 0x22),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x17, 0xbe, 0xcf),
];
/// Rules for the colours above: dashes for what is no curve; and the dark scheme, for a screen and not for paper.
pub const STYLE: &str = "svg [stroke=\"#B22222\"] { stroke-dasharray: 6 4; }\n\
    svg [stroke=\"#0072B2\"] { stroke-dasharray: 2 3; }\n\
    @media screen and (prefers-color-scheme: dark) {\n\
    svg [fill=\"#FFFFFF\"] { fill: #16181d; } svg [fill=\"#333333\"] { fill: #d6d9df; }\n\
    svg [stroke=\"#333333\"] { stroke: #d6d9df; } svg [stroke=\"#E5E5E5\"] { stroke: #33373f; }\n\
    svg [stroke=\"#000000\"] { stroke: #ffffff; } svg [stroke=\"#B22222\"] { stroke: #ff7b72; }\n\
    svg [stroke=\"#0072B2\"] { stroke: #58a6ff; }\n}\n";

/// Height of the font, and of a line of text, in pixels.
const FONT: f64 = 12.0;
const LINE: i32 = 17;
/// Divisor that plotters applies to the size of a font on its way to SVG.
const FONT_SCALE: f64 = 1.24;
/// Width of a character, on average over a label: of wide sans-serif fonts.
const CHARACTER: f64 = FONT * 0.56;
/// Room for the numbers and the name of the y axis, with the margin, and for those of the x axis.
const LEFT: i32 = 72;
const BOTTOM: i32 = 42;
const MARGIN: i32 = 10;
/// Moments as close as this share one label.
const SAME_PLACE: i32 = 4;

/// A drawing that collects what it shows, and is laid out for a size at the end.
#[derive(Clone, Debug)]
pub struct Chart {
    title: Vec<String>,
    x: Range<f64>,
    y: Range<f64>,
    is_log_x: bool,
    x_name: String,
    y_name: String,
    x_label: fn(&f64) -> String,
    y_label: fn(&f64) -> String,
    levels: Vec<(f64, String)>,
    moments: Vec<(f64, String)>,
    curves: Vec<(String, Vec<(f64, f64)>)>,
}

/// Several moments under one label.
struct Mark {
    /// Horizontal position, in pixels.
    x: i32,
    label: String,
}

/// A label that has its place.
struct Placed {
    from: i32,
    row: usize,
    label: String,
}

impl Chart {
    /// An empty one. The names of the axes stand beside them; they name the unit.
    pub fn new(x_name: &str, x: Range<f64>, y_name: &str, y: Range<f64>) -> Self {
        Self {
            title: Vec::new(),
            x,
            y,
            is_log_x: false,
            x_name: x_name.to_owned(),
            y_name: y_name.to_owned(),
            x_label: short,
            y_label: short,
            levels: Vec::new(),
            moments: Vec::new(),
            curves: Vec::new(),
        }
    }

    /// Makes the x axis logarithmic, each step to the right ten times the one before; `x` must be above zero.
    #[must_use]
    pub fn with_log_x(mut self, label: fn(&f64) -> String) -> Self {
        (self.is_log_x, self.x_label) = (true, label);
        self
    }

    /// Sets how the numbers of the y axis are written.
    #[must_use]
    pub fn with_y_label(mut self, label: fn(&f64) -> String) -> Self {
        self.y_label = label;
        self
    }

    /// A line of text above the drawing; shortened where it is too long.
    pub fn title(&mut self, line: impl Display) {
        self.title.push(line.to_string());
    }

    /// A dashed line across that means something.
    pub fn level(&mut self, value: f64, label: impl Display) {
        self.levels.push((value, label.to_string()));
    }

    /// A line upwards that means something; in the order of time. One beyond the axis is left out.
    pub fn moment(&mut self, value: f64, label: impl Display) {
        if (self.x.start..=self.x.end).contains(&value) {
            self.moments.push((value, label.to_string()));
        }
    }

    /// A line; names are shown where there is more than one.
    pub fn curve(&mut self, name: impl Display, points: Vec<(f64, f64)>) {
        self.curves.push((name.to_string(), points));
    }

    /// Draws it at this size in pixels, for a page that has [`STYLE`].
    ///
    /// # Errors
    /// A range without extent, or a size without room for the axes.
    pub fn draw(&self, size: (u32, u32)) -> io::Result<String> {
        let mut text = String::new();
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let drawn = match self.is_log_x {
            true => self.draw_on(&root, self.x.clone().log_scale(), size),
            false => self.draw_on(&root, self.x.clone(), size),
        };
        drawn
            .and_then(|()| root.present())
            .map_err(|error| io::Error::other(error.to_string()))?;
        drop(root);
        Ok(text)
    }

    /// Draws the chart with [`STYLE`], as a file of its own.
    ///
    /// # Errors
    /// See [`Self::draw`].
    pub fn draw_file(&self, size: (u32, u32)) -> io::Result<String> {
        let text = self.draw(size)?;
        let style = format!(">\n<style>{STYLE}</style>\n");
        Ok(text.replacen(">\n", &style, 1))
    }

    fn draw_on<X>(
        &self,
        root: &DrawingArea<SVGBackend<'_>, Shift>,
        x: X,
        size: (u32, u32),
    ) -> Result<(), DrawingAreaErrorKind<io::Error>>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let pixels = |side: u32| i32::try_from(side).unwrap_or(i32::MAX);
        let (width, height) = (pixels(size.0), pixels(size.1));
        let longest = self.levels.iter().map(|(_, label)| wide(label)).max();
        let right = longest.map_or(MARGIN * 2, |longest| longest + MARGIN);
        let labels = place(self.marks(width - right), width);
        let rows = labels
            .iter()
            .map(|placed| placed.row + 1)
            .max()
            .unwrap_or(0);
        let titles = self.title.len();
        let above = |lines: usize| MARGIN + LINE * i32::try_from(lines).unwrap_or(0);
        let top = above(titles + rows);

        root.fill(&PAPER)?;
        for (line, title) in self.title.iter().enumerate() {
            let place = (MARGIN, above(line) + LINE / 2);
            let most = f64::from(width - 2 * MARGIN) / CHARACTER;
            root.draw(&Text::new(
                shortened(title, most as usize),
                place,
                style(HPos::Left),
            ))?;
        }
        let mut chart = ChartBuilder::on(root)
            .margin_top(top)
            .margin_left(MARGIN)
            .margin_right(right)
            .x_label_area_size(BOTTOM)
            .y_label_area_size(LEFT - MARGIN)
            .build_cartesian_2d(x, self.y.clone())?;
        let count = |pixels: i32, each: i32| usize::try_from(pixels / each).unwrap_or(0).max(2);
        chart
            .configure_mesh()
            .x_labels(count(width - LEFT - right, 70))
            .y_labels(count(height - top - BOTTOM, 40))
            .max_light_lines(0)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(style(HPos::Left))
            .x_label_formatter(&self.x_label)
            .y_label_formatter(&self.y_label)
            .x_desc(&self.x_name)
            .y_desc(&self.y_name)
            .axis_desc_style(style(HPos::Left))
            .draw()?;

        for (value, _) in &self.levels {
            let ends = [(self.x.start, *value), (self.x.end, *value)];
            chart.draw_series(LineSeries::new(ends, LEVEL.stroke_width(1)))?;
        }
        for (value, _) in &self.moments {
            let ends = [(*value, self.y.start), (*value, self.y.end)];
            chart.draw_series(LineSeries::new(ends, MOMENT.stroke_width(1)))?;
        }
        for (number, (name, points)) in self.curves.iter().enumerate() {
            let colour = CURVES[number % CURVES.len()];
            let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
            let drawn = chart.draw_series(line)?;
            if self.curves.len() > 1 {
                drawn.label(name).legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3))
                });
            }
        }
        if self.curves.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .background_style(PAPER.mix(0.8))
                .border_style(GRID)
                .label_font(style(HPos::Left))
                .draw()?;
        }

        let places = self.levels.iter().map(|(value, _)| {
            let (_, y) = chart.backend_coord(&(self.x.start, *value));
            y
        });
        let places = apart(places.collect(), top + LINE / 2, height - BOTTOM);
        for ((_, label), y) in self.levels.iter().zip(places) {
            let place = (width - right + MARGIN / 2, y);
            root.draw(&Text::new(label.as_str(), place, style(HPos::Left)))?;
        }
        for placed in labels {
            let place = (placed.from, above(titles + placed.row) + LINE / 2);
            root.draw(&Text::new(placed.label, place, style(HPos::Left)))?;
        }
        Ok(())
    }

    /// The moments that are drawn beside each other share a label.
    fn marks(&self, right: i32) -> Vec<Mark> {
        let extent = self.x.end - self.x.start;
        let place = |value: f64| {
            let share = (value - self.x.start) / extent;
            LEFT + (share * f64::from(right - LEFT)).round() as i32
        };
        let mut groups: Vec<Vec<&(f64, String)>> = Vec::new();
        for moment in &self.moments {
            match groups.last_mut() {
                Some(group) if place(moment.0) - place(group[0].0) < SAME_PLACE => {
                    group.push(moment);
                }
                _ => groups.push(vec![moment]),
            }
        }
        let marks = groups.into_iter().map(|group| {
            let (first, last) = (group[0], group[group.len() - 1]);
            let label = match group.len() {
                1 => format!("{} {}", first.1, precise(first.0)),
                2 => format!("{}, {} {}", first.1, last.1, precise(last.0)),
                _ => format!("{} to {} {}", first.1, last.1, precise(last.0)),
            };
            Mark {
                x: place(first.0),
                label,
            }
        });
        marks.collect()
    }
}

/// Gives each label a place beside its line, in the first row that has room.
fn place(marks: Vec<Mark>, width: i32) -> Vec<Placed> {
    let mut rows: Vec<Vec<Range<i32>>> = Vec::new();
    let placed = marks.into_iter().map(|Mark { x, label }| {
        let wide = wide(&label);
        let from = match x + MARGIN / 2 {
            from if from + wide <= width => from,
            _ => (x - MARGIN / 2 - wide).max(0),
        };
        let is_free = |row: &Vec<Range<i32>>| {
            let mut taken = row.iter();
            taken.all(|taken| from >= taken.end || from + wide <= taken.start)
        };
        let row = rows.iter().position(is_free).unwrap_or(rows.len());
        if row == rows.len() {
            rows.push(Vec::new());
        }
        rows[row].push(from..from + wide + MARGIN);
        Placed { from, row, label }
    });
    placed.collect()
}

/// Moves places of lines of text apart, between two bounds, as little as that takes.
fn apart(places: Vec<i32>, from: i32, to: i32) -> Vec<i32> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|i| places[*i]);
    let mut moved = places.clone();
    let mut least = from;
    for i in &order {
        moved[*i] = places[*i].max(least);
        least = moved[*i] + LINE;
    }
    let mut most = to;
    for i in order.iter().rev() {
        moved[*i] = moved[*i].min(most);
        most = moved[*i] - LINE;
    }
    moved
}

fn style(side: HPos) -> TextStyle<'static> {
    let font = ("sans-serif", FONT * FONT_SCALE).into_font();
    TextStyle::from(font)
        .color(&INK)
        .pos(Pos::new(side, VPos::Center))
}

/// Width that a label takes at most, in pixels.
fn wide(label: &str) -> i32 {
    (label.chars().count() as f64 * CHARACTER).ceil() as i32
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    kept + "\u{2026}"
}

/// A number of an axis.
fn short(value: &f64) -> String {
    // Steps are 1, 2 or 5 times a power of ten: what is not seen in so many digits is an error of rounding.
    let rounded = (value * 1e6).round() / 1e6;
    // Without the sign of a negative zero.
    (rounded + 0.0).to_string()
}

/// Formats a moment in the unit of the axis.
fn precise(value: f64) -> String {
    match value.abs() {
        v if v < 100.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        Chart::new("ms", -249.0..100.0, "MiB", 0.0..236.0)
    }

    /// What stands in elements of text.
    fn texts(svg: &str) -> Vec<&str> {
        let inside = svg.split("<text").skip(1);
        let inside = inside.filter_map(|e| e.split_once(">\n")?.1.split_once("\n</text>"));
        inside.map(|(text, _)| text).collect()
    }

    #[test]
    fn ticks_are_round() {
        let svg = chart().draw((860, 420)).unwrap();
        let texts = texts(&svg);
        for tick in ["-200", "-100", "0", "100", "50", "200"] {
            assert!(texts.contains(&tick), "{tick}: {texts:?}");
        }
        assert!(
            !texts.contains(&"59") && !texts.contains(&"-0"),
            "{texts:?}"
        );
    }

    #[test]
    fn steps_of_ten_are_labelled_as_asked() {
        let log = Chart::new("us", 1.0..1e6, "share", 0.0..1.0).with_log_x(|us| format!("{us} us"));
        let svg = log.draw((860, 420)).unwrap();
        for tick in ["10 us", "1000 us", "100000 us", "0.6"] {
            assert!(texts(&svg).contains(&tick), "{tick}: {svg}");
        }
    }

    #[test]
    fn words_are_no_markup() {
        let mut chart = chart();
        chart.title("a < b & \"c\"");
        chart.curve("<x>", vec![(0.0, 0.0), (1.0, 1.0)]);
        chart.curve("y", vec![(0.0, 0.0), (1.0, 1.0)]);
        let svg = chart.draw((860, 420)).unwrap();
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;") && svg.contains("&lt;x&gt;"));
        assert!(!svg.contains("<x>"));
    }

    #[test]
    fn moments_at_one_place_share_a_label_and_others_stand_in_rows() {
        let mut chart = chart();
        for (ms, name) in [
            (0.0, "crossed"),
            (0.1, "woken"),
            (0.2, "SIGKILL"),
            (9.0, "gone"),
        ] {
            chart.moment(ms, name);
        }
        let marks = chart.marks(800);
        let labels: Vec<_> = marks.iter().map(|mark| mark.label.clone()).collect();
        assert_eq!(labels, ["crossed to SIGKILL 0.20", "gone 9.00"]);
        let placed = place(marks, 860);
        assert_eq!((placed[0].row, placed[1].row), (0, 1));
        // The last one stands before its line where there is no room behind it.
        let narrow = place(chart.marks(340), 360);
        assert!(
            narrow
                .iter()
                .all(|p| p.from >= 0 && p.from + wide(&p.label) <= 360)
        );
    }

    #[test]
    fn no_moment_is_beyond_the_axis() {
        let mut chart = chart();
        chart.moment(-250.0, "before");
        chart.moment(101.0, "after");
        assert!(chart.marks(800).is_empty());
        // The recorder has forgotten what was before the first moments.
        let mut incident = crate::incident::tests::incident("one");
        let start = incident.start();
        for samples in incident.samples.values_mut() {
            samples.retain(|(time, _)| *time > start);
            samples.insert(0, (start + 1_000_000, 7));
        }
        let moments = incident.moments();
        let chart = incident.chart().unwrap();
        assert_eq!(chart.moments.len(), moments.len());
        assert!(chart.marks(800).iter().all(|mark| mark.x >= LEFT));
    }

    #[test]
    fn labels_of_levels_keep_apart() {
        assert_eq!(apart(vec![100, 101, 300], 10, 400), [100, 117, 300]);
        assert_eq!(apart(vec![400, 399], 10, 400), [400, 383]);
        assert_eq!(apart(vec![5], 10, 400), [10]);
    }

    #[test]
    fn what_has_no_extent_is_an_error_or_a_drawing() {
        let flat = Chart::new("ms", 0.0..0.0, "MiB", 0.0..1.0);
        // Either way nothing panics.
        let _ = flat.draw((860, 420));
        let _ = chart().draw((1, 1));
    }
}
