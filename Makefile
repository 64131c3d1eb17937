test:
	@echo "not built yet"
