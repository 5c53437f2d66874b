// Before the first paint: the theme that was chosen, else the system's.
(() => {
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch { /* storage is off: the system's theme */ }
})();
