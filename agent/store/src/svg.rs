//! Lines over time as SVG: what incident reports and the benchmark draw.

use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;
/// Told apart also by those who do not see all colours, as far as twelve lines allow.
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

    /// The same, each step to the right a multiple of the one before; `x` is above zero.
    pub fn log_x(x: (f64, f64), y: (f64, f64)) -> Self {
        Self { x, y, log_x: true }
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

/// A picture that grows line by line: 860 by 420, the names of its lines at the right.
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
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#333333\">{}</text>",
            escaped(words)
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

    /// A line upwards that means something, with its name at the top; `row` keeps the names of neighbours apart.
    pub fn moment(&mut self, value: f64, row: usize, label: &str) {
        let x = self.axes.x(value);
        let style = "stroke=\"#0072b2\" stroke-dasharray=\"2 3\"";
        self.stroke((x, TOP), (x, HEIGHT - BOTTOM), style);
        self.write(x + 3.0, TOP + 12.0 + 14.0 * row as f64, "start", label);
    }

    /// A line of words beside the picture, below the names of the lines.
    pub fn remark(&mut self, words: &str) {
        let y = TOP + 12.0 + 18.0 * self.lines as f64;
        self.write(WIDTH - RIGHT + 14.0, y, "start", words);
        self.lines += 1;
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

/// Words as XML has them.
fn escaped(words: &str) -> String {
    words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_lies_where_the_axes_say() {
        let axes = Axes::log_x((1.0, 1000.0), (0.0, 2.0));
        assert!((axes.x(1.0) - LEFT).abs() < 1e-6);
        assert!((axes.x(1000.0) - (WIDTH - RIGHT)).abs() < 1e-6);
        let third = LEFT + (WIDTH - LEFT - RIGHT) / 3.0;
        assert!((axes.x(10.0) - third).abs() < 1e-6);
        assert!(axes.y(2.0) < axes.y(0.0));
    }

    #[test]
    fn words_are_no_markup() {
        let mut picture = Picture::new("a < b & c", Axes::linear((0.0, 1.0), (0.0, 1.0)));
        picture.curve("<x>", &[(0.0, 0.0)]);
        let text = picture.finish();
        assert!(text.contains("a &lt; b &amp; c") && text.contains("&lt;x&gt;"));
        assert!(text.ends_with("</svg>\n"));
    }
}
