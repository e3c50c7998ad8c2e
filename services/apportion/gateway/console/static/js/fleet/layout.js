// The positions of all devices: pools on shelves and nodes in columns, as large as the canvas allows. Pure.
//
// All lengths are pixels of the canvas. Zoom levels are device widths from a list, so that edges fall on whole
// pixels; `fitted` is the level at which the whole fleet is visible.
import { poolCounts, poolWords } from "../format.js";
import { WHOLE } from "./model.js";

const WIDTHS = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 29, 35, 42, 50];
const SHELVES_MAX = 9;
const WORTH_MOVING = 1.25; // how much larger devices must become for pools to change their shelves
const ROWS_MAX = 4000;
const NARROW = 720; // as in css/narrow.css
const LETTER_ROOM = 6.7;
const SMALL_LETTER_ROOM = 5.8;
const PERCENT_ROOM = 42;
const ROOM_MOST = 190; // less than half of a phone
const NAME_LETTER_ROOM = 6.1; // of node names, which are drawn if all names of a pool fit above their devices
const LABEL_ROOM = 60; // longer names are cut to the width of four devices on a phone

/** The minimum width of a pool: enough for its heading. */
function nameRoom(pool) {
  const { models: [model = ""] = [] } = pool;
  const letters = poolWords(pool).length + (model ? model.length + 1 : 0);
  return Math.min(
    ROOM_MOST,
    Math.max(LETTER_ROOM * letters, SMALL_LETTER_ROOM * poolCounts(pool).length + PERCENT_ROOM),
  );
}

/** The width that a pool's nodes need for their names. */
const nodeNameRoom = pool =>
  Math.min(LABEL_ROOM, NAME_LETTER_ROOM * Math.max(...pool.nodes.map(node => node.name.length)));

const gapOf = width => (width < 2 ? 0 : width < 12 ? 1 : 2);
const nodeGapOf = width => (width < 2 ? 1 : width < 4 ? 3 : Math.min(12, width));
const rowGapOf = width => Math.max(1, Math.round(width * 0.9));
const tallest = width => (width < 2 ? 9 : Math.round(width * 3.6));
const nodeWidth = (pool, width) =>
  pool.width * width + (pool.width - 1) * gapOf(width) + nodeGapOf(width);

export class Layout {
  /**
   * `scale` is the number of canvas pixels per CSS pixel. Pools stay on their shelves of the layout `before`,
   * unless others are much better, so that an event does not move them.
   */
  constructor(pools, width, height, scale, before = null) {
    this.pools = pools;
    this.width = width;
    this.height = height;
    this.scale = scale;
    this.head = Math.round(35 * scale);
    this.poolGap = Math.round(14 * scale);
    this.rooms = new Map(pools.map(pool => [pool, Math.round(nameRoom(pool) * scale)]));
    this.nameRooms = new Map(pools.map(pool => [pool, nodeNameRoom(pool) * scale]));
    this.pad = Math.round((width < NARROW * scale ? 14 : 24) * scale); // aligned with the headline
    this.fit(before);
  }

  /** Find the number of shelves that allows the largest devices. */
  fit(before) {
    let best = null;
    for (let shelves = 1; shelves <= Math.min(SHELVES_MAX, this.pools.length); shelves += 1) {
      const found = this.largest(this.split(shelves));
      if (found && (!best || found.area > best.area)) best = found;
    }
    const kept = before && this.largest(this.splitAs(before));
    if (kept && kept.area * WORTH_MOVING >= best.area) best = kept;
    best ??= this.tooMuch();
    this.shelves = best.split.map((pools, at) => ({ pools, rows: best.rows[at] }));
    this.fitted = best.zoom;
    this.fittedHeight = best.height;
    this.left = this.pad;
    this.top = this.pad;
    this.zoomTo(best.zoom);
  }

  /** The largest zoom level at which shelves fit, with their rows; null if none does. */
  largest(split) {
    for (let zoom = WIDTHS.length - 1; zoom >= 0; zoom -= 1) {
      const found = this.tryFit(split, WIDTHS[zoom]);
      if (found) return { ...found, zoom, split };
    }
    return null;
  }

  /** The pools on the shelves of another layout; all on one shelf if it has other pools. */
  splitAs({ shelves }) {
    const names = shelves.map(({ pools }) => pools.map(({ name }) => name));
    if (String(names.flat()) !== String(this.pools.map(({ name }) => name))) return [this.pools];
    let at = 0;
    return names.map(({ length }) => this.pools.slice(at, (at += length)));
  }

  /** Distribute the pools in order over `count` shelves of similar size. */
  split(count) {
    const all = this.pools.reduce((sum, pool) => sum + pool.nodes.length * pool.width, 0);
    const shelves = [[]];
    let sum = 0;
    for (const pool of this.pools) {
      const size = pool.nodes.length * pool.width;
      if (
        shelves.at(-1).length &&
        shelves.length < count &&
        sum >= (all * shelves.length) / count - size * 0.45
      )
        shelves.push([]);
      shelves.at(-1).push(pool);
      sum += size;
    }
    return shelves;
  }

  tryFit(split, width) {
    const room = this.width - 2 * this.pad;
    const rows = [];
    for (const pools of split) {
      let count = 1;
      while (this.shelfWidth(pools, width, count) > room && count <= ROWS_MAX) count += 1;
      if (count > ROWS_MAX) return null;
      rows.push(count);
    }
    const total = rows.reduce((sum, count) => sum + count, 0);
    const labels = rows.reduce(
      (sum, count, at) => sum + count * this.labelOf(split[at], width, count),
      0,
    );
    const free = this.height - this.pad * 1.5 - split.length * this.head - labels;
    const height = Math.min(Math.floor(free / total) - rowGapOf(width), tallest(width));
    return height < Math.max(3, width * 1.5) ? null : { rows, height, area: width * height };
  }

  /** The distance between nodes of a pool: the width of their devices, or of their names if there is room. */
  strideOf(pool, width, rows) {
    const own = nodeWidth(pool, width);
    const room = Math.floor(
      this.poolWidth(pool, width, rows) / Math.ceil(pool.nodes.length / rows),
    );
    const named = Math.ceil(this.nameRooms.get(pool)) + nodeGapOf(width);
    return named <= room ? Math.max(own, named) : own;
  }

  /** Whether the nodes of a pool are wide enough for names above them. */
  isNamed(pool, width, rows) {
    return this.strideOf(pool, width, rows) - nodeGapOf(width) >= this.nameRooms.get(pool);
  }

  /** The height of node names on a shelf; 0 if no pool has room for them. */
  labelOf(pools, width, rows) {
    return pools.some(pool => this.isNamed(pool, width, rows)) ? Math.round(15 * this.scale) : 0;
  }

  shelfWidth(pools, width, rows) {
    return pools.reduce(
      (sum, pool) => sum + this.poolWidth(pool, width, rows) + this.poolGap,
      -this.poolGap,
    );
  }

  poolWidth(pool, width, rows) {
    return Math.max(
      Math.ceil(pool.nodes.length / rows) * nodeWidth(pool, width),
      this.rooms.get(pool),
    );
  }

  /** The fallback for more devices than pixels: a shelf per pool, larger than the canvas. */
  tooMuch() {
    const room = this.width - 2 * this.pad;
    const rows = this.pools.map(pool =>
      Math.ceil(pool.nodes.length / Math.max(1, Math.floor(room / nodeWidth(pool, 1)))),
    );
    return { zoom: 0, height: 3, split: this.pools.map(pool => [pool]), rows };
  }

  /** Set the zoom level and compute all positions. */
  zoomTo(zoom) {
    this.zoom = Math.max(0, Math.min(WIDTHS.length - 1, zoom));
    this.cardWidth = WIDTHS[this.zoom];
    this.cardHeight =
      this.zoom === this.fitted
        ? this.fittedHeight
        : Math.round((this.cardWidth * this.fittedHeight) / WIDTHS[this.fitted]);
    this.gap = gapOf(this.cardWidth);
    this.groups = [];
    let y = 0;
    for (const { pools, rows } of this.shelves) {
      const label = this.labelOf(pools, this.cardWidth, rows);
      const rowHeight = this.cardHeight + rowGapOf(this.cardWidth) + label;
      let x = 0;
      for (const pool of pools) {
        const columns = Math.ceil(pool.nodes.length / rows);
        const width = this.poolWidth(pool, this.cardWidth, rows);
        this.groups.push({
          pool,
          x,
          y,
          columns,
          rows,
          width,
          label,
          named: this.isNamed(pool, this.cardWidth, rows),
          rowHeight,
          nodeWidth: this.strideOf(pool, this.cardWidth, rows),
        });
        x += width + this.poolGap;
      }
      y += this.head + rows * rowHeight;
    }
    this.whole = y;
  }

  /** Zoom by steps around a point, whose content stays under it. */
  zoomBy(steps, x = this.width / 2, y = this.height / 2) {
    const zoom = Math.max(0, Math.min(WIDTHS.length - 1, this.zoom + steps));
    if (zoom === this.zoom || !this.groups.length) return;
    const before =
      this.groups.filter(group => x >= this.left + group.x - 9 && y >= this.top + group.y).at(-1) ??
      this.groups[0];
    const across = (x - this.left - before.x) / before.nodeWidth;
    const down = (y - this.top - before.y - this.head) / before.rowHeight;
    this.zoomTo(zoom);
    const after = this.groups.find(group => group.pool === before.pool);
    this.left = Math.round(x - after.x - across * after.nodeWidth);
    this.top = Math.round(y - after.y - this.head - down * after.rowHeight);
  }

  /** Bring a device to the middle, at a readable zoom level. */
  centre(node, card) {
    if (this.cardWidth < 12) this.zoomTo(WIDTHS.indexOf(12));
    const box = this.boxOf(node, card);
    if (!box) return;
    this.left = Math.min(this.pad, this.left + Math.round(this.width * 0.4 - box.x));
    this.top = Math.min(this.pad, this.top + Math.round(this.height / 2 - box.y));
  }

  /** The position of a node's first device. */
  nodeAt(group, place) {
    return {
      x: this.left + group.x + Math.floor(place / group.rows) * group.nodeWidth,
      y: this.top + group.y + this.head + (place % group.rows) * group.rowHeight + group.label,
    };
  }

  /** The box of a device or of a whole node. */
  boxOf(node, card) {
    const group = this.groups.find(each => each.pool === node.home);
    if (!group) return null;
    const { x, y } = this.nodeAt(group, node.place);
    if (card === WHOLE)
      return {
        x,
        y,
        width: node.count * (this.cardWidth + this.gap) - this.gap,
        height: this.cardHeight,
      };
    return {
      x: x + card * (this.cardWidth + this.gap),
      y,
      width: this.cardWidth,
      height: this.cardHeight,
    };
  }

  /** The device at a point as `{node, card}`, or null; the whole node at its name. */
  at(x, y) {
    for (const group of this.groups) {
      const across = x - this.left - group.x;
      const down = y - this.top - group.y - this.head;
      const column = Math.floor(across / group.nodeWidth);
      const row = Math.floor(down / group.rowHeight);
      if (across < 0 || down < 0 || column >= group.columns || row >= group.rows) continue;
      const node = group.pool.nodes[column * group.rows + row];
      if (!node) continue;
      if (group.named && down - row * group.rowHeight < group.label) return { node, card: WHOLE };
      const within = across - column * group.nodeWidth;
      if (within >= nodeWidth(group.pool, this.cardWidth)) continue; // only its name is this wide
      const card = Math.min(node.count - 1, Math.floor(within / (this.cardWidth + this.gap)));
      return card >= 0 ? { node, card } : null;
    }
    return null;
  }

  /** The visible columns and rows of a group. */
  seen(group) {
    const x = this.left + group.x;
    const y = this.top + group.y + this.head;
    return {
      columns: [
        Math.max(0, Math.floor(-x / group.nodeWidth)),
        Math.min(group.columns, Math.ceil((this.width - x) / group.nodeWidth)),
      ],
      rows: [
        Math.max(0, Math.floor(-y / group.rowHeight)),
        Math.min(group.rows, Math.ceil((this.height - y) / group.rowHeight)),
      ],
    };
  }
}
