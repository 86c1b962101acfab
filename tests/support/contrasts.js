/** Return the contrast of every piece of text that is shown with what lies behind it, and its words. */
() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const channels = (colour, under) => {
    canvas.fillStyle = under ? `rgb(${under})` : '#fff';
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (c) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = c.map((v) => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = (e) => {
    const line = [];
    for (let one = e; one; one = one.parentElement) line.unshift(getComputedStyle(one).backgroundColor);
    return line.reduce((under, colour) => channels(colour, under), channels(line[0]));
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !e.checkVisibility() || e.closest("option, noscript")) continue;
    const style = getComputedStyle(e);
    const under = ground(e);
    const colour = channels(e.closest('svg') ? style.fill : style.color, under);
    const [one, other] = [light(colour), light(under)].sort((a, b) => b - a);
    found.push([(one + .05) / (other + .05), text.slice(0, 40)]);
  }
  return found;
}
