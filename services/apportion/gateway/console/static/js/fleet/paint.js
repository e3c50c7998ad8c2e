// The picture: one pixel buffer, filled device by device and put on the canvas at once.
//
// Without canvas paths and objects per device, 80,000 devices are drawn within a frame. Text and outlines are
// on a second canvas, so that pointing redraws no device. No state depends on colour alone: unhealthy devices
// are crossed out, cordoned ones are hatched, and allocated and used memory differ in height.
import { NAMESPACE_COLOURS } from "../colours.js";
import { midCut, num, percent, poolCounts, poolHeading, poolWords } from "../format.js";
import { BROKEN, CORDONED, isFree, WHOLE } from "./model.js";

const DIMMED = 0.82;
const CROSS_FROM = 5;
const LINED_FROM = 3;
const WORD_GAP = 7;

/** #rrggbb in the byte order of the buffer: alpha, blue, green, red. */
export function word(hex) {
  const value = Number.parseInt(hex.trim().slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** Mix a part of one colour into another. */
export function mixed(a, b, part) {
  let result = 0;
  for (let shift = 0; shift < 32; shift += 8) {
    result |=
      Math.round(((a >>> shift) & 255) * (1 - part) + ((b >>> shift) & 255) * part) << shift;
  }
  return result >>> 0;
}

/** The colours of the theme, each as a pair of normal and dimmed. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const css = name => style.getPropertyValue(name).trim();
  const ground = word(css("--stage"));
  const both = colour => [colour, mixed(colour, ground, DIMMED)];
  const free = word(css("--c-free"));
  return {
    css,
    ground,
    free: both(free),
    freeFound: word(css("--ok")),
    granted: both(word(css("--c-granted"))),
    used: both(word(css("--c-used"))),
    broken: both(word(css("--c-broken"))),
    cordoned: both(word(css("--c-cordon"))),
    namespaceUsed: NAMESPACE_COLOURS.map(hex => both(word(hex))),
    namespaceGranted: NAMESPACE_COLOURS.map(hex => both(mixed(word(hex), free, 0.6))),
  };
}

export class Painter {
  constructor(cards, over) {
    this.canvas = cards;
    this.over = over;
    this.context = cards.getContext("2d", { alpha: false });
    this.words = over.getContext("2d");
    this.colours = palette();
    this.byNamespace = false;
  }

  /** Take the size of an element; returns whether it has changed. */
  resize(place) {
    const scale = Math.min(2, devicePixelRatio || 1);
    const width = Math.max(1, Math.round(place.clientWidth * scale));
    const height = Math.max(1, Math.round(place.clientHeight * scale));
    if (width === this.width && height === this.height) return false;
    this.width = width;
    this.height = height;
    this.scale = scale;
    for (const canvas of [this.canvas, this.over]) Object.assign(canvas, { width, height });
    this.image = this.context.createImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    return true;
  }

  /** Draw all visible devices. */
  draw(layout, filter, told) {
    this.pixels.fill(this.colours.ground);
    for (const group of layout.groups) {
      const { columns, rows } = layout.seen(group);
      for (let column = columns[0]; column < columns[1]; column += 1) {
        for (let row = rows[0]; row < rows[1]; row += 1) {
          const place = column * group.rows + row;
          const node = group.pool.nodes[place];
          if (!node) break;
          this.node(layout, group, node, place, filter.active ? filter.of(node) : null, told);
        }
      }
    }
    this.context.putImageData(this.image, 0, 0);
  }

  node(layout, group, node, place, match, told) {
    const { cardWidth: width, cardHeight: height } = layout;
    const at = layout.nodeAt(group, place);
    for (let card = 0; card < node.count; card += 1) {
      const x = at.x + card * (width + layout.gap);
      const dim = match && !match[card] ? 1 : 0;
      // free devices are pale, even if not dimmed, so matching ones have a colour of their own
      const found = match && match[card] && isFree(node, card);
      const ground = found ? this.colours.freeFound : this.colours.free[dim];
      this.rect(x, at.y, width, height, ground);
      if (node.state[card] & BROKEN) this.cross(x, at.y, width, height, dim);
      else this.shares(node, card, { x, y: at.y, width, height, dim, told });
      if (node.state[card] & CORDONED && !(node.state[card] & BROKEN))
        this.hatch(layout, x, at.y, width, height, dim);
    }
  }

  /**
   * Draw the shares of a device from the bottom up: pale for allocated, strong for used or running. On a
   * cordoned device all are pale, so that its stripes stay visible. A share has a line above it if it is high
   * enough. Small shares form one block that ends at their sum, with at least a pixel each if possible.
   */
  shares(node, card, { x, y, width, height, dim, told }) {
    const { colours } = this;
    const cordoned = node.state[card] & CORDONED;
    let foot = y + height;
    let sum = 0;
    for (let at = node.start[card]; at < node.start[card + 1]; at += 1) {
      sum += node.memory[at];
      if (foot <= y) return;
      const most = Math.max(1, foot - y - (node.start[card + 1] - at - 1));
      const tall = Math.min(most, Math.max(1, foot - y - height + Math.round(sum * height)));
      const [pale, strong] = this.byNamespace
        ? [
            colours.namespaceGranted[node.colour[at]][dim],
            colours.namespaceUsed[node.colour[at]][dim],
          ]
        : [colours.granted[dim], colours.used[dim]];
      const share = node.memory[at] || 1;
      const part = cordoned ? 0 : told ? Math.max(0, node.used[at]) / share : node.running[at];
      const full = Math.round(tall * part);
      this.rect(x, foot - tall, width, tall, pale);
      if (full) this.rect(x, foot - full, width, full, strong);
      foot -= tall;
      if (height >= 8 && tall >= LINED_FROM && foot > y)
        this.rect(x, foot, width, 1, colours.ground);
    }
  }

  cross(x, y, width, height, dim) {
    this.rect(x, y, width, height, this.colours.broken[dim]);
    const { ground } = this.colours;
    if (width < CROSS_FROM) {
      if (height >= 5) this.rect(x, y + (height >> 1), width, 1, ground);
      return;
    }
    const arm = width - 2;
    const top = y + ((height - arm) >> 1);
    for (let at = 0; at < arm; at += 1) {
      this.rect(x + 1 + at, top + at, 1, 1, ground);
      this.rect(x + width - 2 - at, top + at, 1, 1, ground);
    }
  }

  hatch(layout, x, y, width, height, dim) {
    const colour = this.colours.cordoned[dim];
    const stripe = width > 4 ? 2 : 1.5;
    const right = Math.min(this.width, x + width);
    const foot = Math.min(this.height, y + height);
    for (let row = Math.max(0, y); row < foot; row += 1) {
      for (let column = Math.max(0, x); column < right; column += 1) {
        const phase = (column - layout.left + row - layout.top) % 4;
        if ((phase + 4) % 4 < stripe) this.pixels[row * this.width + column] = colour;
      }
    }
  }

  rect(x, y, width, height, colour) {
    const left = Math.max(0, x);
    const right = Math.min(this.width, x + width);
    const foot = Math.min(this.height, y + height);
    for (let row = Math.max(0, y); row < foot; row += 1) {
      const line = row * this.width;
      if (right - left > 24) this.pixels.fill(colour, line + left, line + right);
      else for (let at = line + left; at < line + right; at += 1) this.pixels[at] = colour;
    }
  }

  // ---- text and outlines ----

  /** Draw the names of pools and nodes, and outlines around the pointed and the selected device. */
  overlay(layout, pointed, chosen) {
    const { words, scale, colours } = this;
    words.clearRect(0, 0, this.width, this.height);
    words.textBaseline = "alphabetic";
    this.poolNames(layout);
    for (const group of layout.groups) if (group.named) this.nodeNames(layout, group);
    if (pointed) {
      this.outline(layout.boxOf(pointed.node, WHOLE), colours.css("--muted"), 1);
      this.outline(
        layout.boxOf(pointed.node, pointed.card),
        colours.css("--text"),
        Math.max(1.5, scale),
      );
    }
    if (chosen)
      this.outline(layout.boxOf(chosen.node, chosen.card), colours.css("--accent"), 2 * scale);
  }

  font(weight, size, mono = false) {
    return `${weight} ${size * this.scale}px ${this.colours.css(mono ? "--mono" : "--sans")}`;
  }

  /** Draw the headings of pools. If one is too long for its line, its whole shelf has headings of two lines. */
  poolNames(layout) {
    const places = layout.groups.map(group => {
      const x = Math.max(layout.pad, layout.left + group.x);
      return {
        pool: group.pool,
        x,
        y: layout.top + group.y,
        most: layout.left + group.x + group.width - x,
      };
    });
    const lines = new Map(places.map(({ pool }) => [pool, this.headingOf(pool)]));
    const long = new Set(
      places
        .filter(({ pool, most }) => most > 0 && this.wide(lines.get(pool).one) > most)
        .map(({ y }) => y),
    );
    for (const { pool, x, y, most } of places) {
      if (y < -60 * this.scale || y > this.height + 40 || x > this.width) continue;
      const { one, name, counts } = lines.get(pool);
      if (!long.has(y)) this.written(one, x, y + 23 * this.scale, most);
      else {
        this.written(name, x, y + 14 * this.scale, most);
        this.written(counts, x, y + 28 * this.scale, most);
      }
    }
  }

  /** The heading of a pool with its size and its allocated share, as one line and as two. */
  headingOf(pool) {
    const bold = said => ({ said, font: this.font(600, 12), colour: "--text" });
    const small = (said, colour) => ({ said, font: this.font(400, 11), colour });
    const held = small(percent(pool.held / Math.max(1, pool.cards)), "--text");
    const models = pool.models
      .slice(0, 1)
      .map(model =>
        small(
          pool.models.length > 1 ? `${model} +${num(pool.models.length - 1)}` : model,
          "--muted",
        ),
      );
    return {
      one: [bold(poolHeading(pool)), held, ...models],
      name: [bold(poolWords(pool)), ...models],
      counts: [small(poolCounts(pool), "--muted"), held],
    };
  }

  /** The width of a line of texts. */
  wide(line) {
    return line.reduce(
      (sum, { said, font }) => {
        this.words.font = font;
        return sum + this.words.measureText(said).width;
      },
      (line.length - 1) * WORD_GAP * this.scale,
    );
  }

  /** Draw a line of texts, as many as fit; the first is shortened if necessary. */
  written(line, x, y, most) {
    const { words, scale, colours } = this;
    let taken = 0;
    for (const [at, { said, font, colour }] of line.entries()) {
      words.font = font;
      const shown = at ? said : shortened(words, said, most);
      const wide = words.measureText(shown).width;
      if (taken + wide > most) return;
      words.fillStyle = colours.css(colour);
      words.fillText(shown, x + taken, y);
      taken += wide + WORD_GAP * scale;
    }
  }

  nodeNames(layout, group) {
    const { words, scale, colours } = this;
    words.font = this.font(400, 10, true);
    words.fillStyle = colours.css("--muted");
    const { columns, rows } = layout.seen(group);
    for (let column = columns[0]; column < columns[1]; column += 1) {
      for (let row = rows[0]; row < rows[1]; row += 1) {
        const node = group.pool.nodes[column * group.rows + row];
        if (!node) break;
        const { x, y } = layout.nodeAt(group, column * group.rows + row);
        words.fillText(shortened(words, node.name, group.nodeWidth - 6 * scale), x, y - 4 * scale);
      }
    }
  }

  outline(box, colour, line) {
    if (!box) return;
    this.words.strokeStyle = colour;
    this.words.lineWidth = line;
    this.words.strokeRect(box.x - line, box.y - line, box.width + 2 * line, box.height + 2 * line);
  }
}

/** A text shortened in the middle to a width. */
function shortened(words, text, most) {
  let cut = text;
  for (let length = text.length - 1; length > 1 && words.measureText(cut).width > most; length -= 1)
    cut = midCut(text, length);
  return cut;
}
