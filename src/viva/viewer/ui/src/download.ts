// Saves data of the page as files. Nothing leaves the browser.

export function saveFile(name: string, content: BlobPart[], type: string): void {
  const url = URL.createObjectURL(new Blob(content, { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "-").slice(-120);
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "font-weight", "text-anchor", "dominant-baseline", "vector-effect"];

/** A plot of the page as a PNG, with the colours that it has now. */
export function savePicture(plot: SVGSVGElement | HTMLCanvasElement, name: string): void {
  if (plot instanceof HTMLCanvasElement) {
    plot.toBlob((blob) => blob && saveFile(name, [blob], "image/png"));
    return;
  }
  const { width, height } = plot.getBoundingClientRect();
  const copy = plot.cloneNode(true) as SVGSVGElement;
  const [from, to] = [[plot, ...plot.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  from.forEach((element, at) => {
    const style = getComputedStyle(element);
    for (const property of STYLES) to[at]?.setAttribute(property, style.getPropertyValue(property));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  const picture = new Image();
  picture.onload = () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width * 2, height * 2];
    const pen = canvas.getContext("2d");
    if (pen === null) return;
    pen.fillStyle = getComputedStyle(document.body).backgroundColor;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => blob && saveFile(name, [blob], "image/png"));
  };
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
}
