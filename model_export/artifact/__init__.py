"""The contract between exporter and service: manifest, batch layout, CPU signature."""
