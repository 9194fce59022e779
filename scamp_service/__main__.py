from scamp_service.cli.main import main

if __name__ == "__main__":
    main()
