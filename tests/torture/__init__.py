"""The figures that Swiftlet promises on its worst day, each as a case that measures it."""
